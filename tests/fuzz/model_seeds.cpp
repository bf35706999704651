#include <hdf5.h>

#include "conversion/import_origin.h"
#include "tests/conversion/tiny_models.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/target.h"

namespace furlong::fuzzing {
namespace {

using nlohmann::json;

void vocabularies(const WriteSeed& seed) {
  const auto files = [](bool pairs, std::initializer_list<std::string> parts, const std::string& text) {
    std::string input(1, pairs ? 1 : 0);
    for (const std::string& part : parts) (input += part) += '\xff';
    return input + text;
  };
  seed("vocabularies", "letters",
       files(false, {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nA\nC\nG\n", "", "", "", ""}, "ACGX [MASK]"));
  seed(
      "vocabularies", "esm",
      files(false, {"<cls>\n<pad>\n<eos>\n<unk>\nL\nA\n<mask>\n", "", R"({"tokenizer_class": "EsmTokenizer"})", "", ""},
            "LAB<mask>"));
  seed("vocabularies", "wordpiece",
       files(false,
             {"[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nab\r\n##c\r\n!\r\n", "",
              R"({"tokenizer_class": "BertTokenizerFast", "do_lower_case": true, "strip_accents": null,)"
              R"( "added_tokens_decoder": {"3": {"content": "[SEP]", "special": true}}})",
              R"({"unk_token": "[UNK]", "mask_token": {"content": "[MASK]", "lstrip": true}})", ""},
             "Abc! [SEP] x"));
  seed("vocabularies", "smiles", files(false, {"[UNK]\nCl\nBr\nc\n(\n)\n1\n[nH]\n", "", "", "", ""}, "Clc1(Br)[nH]"));
  seed("vocabularies", "merges",
       files(true,
             {R"({"th": 256, "the": 257, "<|endoftext|>": 258})", "#version: 0.2\nt h\nth e\n", "", "",
              R"({"<new>": 259})"},
             "the <new> th\x80"));
  seed("vocabularies", "roberta",
       files(true,
             {R"({"<s>": 256, "</s>": 257, "<mask>": 258, "<pad>": 259, "<unk>": 260})", "",
              R"({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": true})", "", ""},
             "a <mask>"));
}

void texts(const WriteSeed& seed) {
  seed("mutations", "header", "mutant,score\nA23V,0.5\nA23V:G45D\t1\n\n# comment\nM1*\r\n");
  seed("mutations", "plain", "A1C\n");
  const auto bytes = [](int first, int second) {
    return std::string{static_cast<char>(first), static_cast<char>(second)};
  };
  seed("sequences", "text_dna", bytes(0, 1) + "ACGT ACGTN\n\nacgtx\r\nGG");
  seed("sequences", "text_blank", bytes(5, 12) + "one\ntwo\n\n\nthree");
  seed("sequences", "text_file", bytes(10, 18) + "LAGV SERT");
  seed("sequences", "fasta", bytes(1, 6) + ">a comment\nMKVLA*\n;note\n>\nLL\n>b\n\n");
  seed("sequences", "tsv", bytes(2, 2) + "name\tACGT\nother\tGG\n");
  seed("sequences", "csv", bytes(3, 16) + "id,text\n1,\"a \"\"b\"\"\nc\"\n2,d\n");
  seed("sequences", "jsonl", bytes(4, 18) + "{\"text\": \"LAG\"}\n{\"text\": \"VS\", \"id\": 3}\n");
}

/// One file of h5py's default format (superblock 0).
class Inputs {
 public:
  explicit Inputs(const std::string& path) : path_(path) {
    file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    expect(file_ >= 0, "cannot create an HDF5 file");
  }
  ~Inputs() { H5Fclose(file_); }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  void floats(const char* name, const std::vector<hsize_t>& shape, bool compressed = false, float first = 0.25F) {
    std::vector<float> values(elements(shape), first);
    write(name, shape, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data(), compressed);
  }
  void integers(const char* name, const std::vector<hsize_t>& shape, hid_t type) {
    const std::vector<int> values(elements(shape), 1);
    write(name, shape, type, H5T_NATIVE_INT, values.data(), false);
  }

 private:
  static std::size_t elements(const std::vector<hsize_t>& shape) {
    std::size_t count = 1;
    for (const hsize_t extent : shape) count *= extent;
    return count;
  }
  void write(const char* name, const std::vector<hsize_t>& shape, hid_t stored, hid_t type, const void* values,
             bool compressed) const {
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                creation = H5Pcreate(H5P_DATASET_CREATE);
    if (compressed) {
      H5Pset_chunk(creation, static_cast<int>(shape.size()), shape.data());
      H5Pset_shuffle(creation);
      H5Pset_deflate(creation, 4);
    }
    const hid_t dataset = H5Dcreate2(file_, name, stored, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    expect(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0, "cannot write an HDF5 dataset");
    H5Dclose(dataset);
    H5Pclose(creation);
    H5Sclose(space);
  }

  std::string path_;
  hid_t file_;
};

void hdf5_inputs(const WriteSeed& seed) {
  const std::string path = Folder::instance().path("made.h5");
  const auto keep = [&](const std::string& name, int chosen, const std::function<void(Inputs&)>& write) {
    {
      Inputs file(path);
      write(file);
    }
    seed("hdf5_inputs", name, content(path) + static_cast<char>(chosen));
  };
  const auto attention = [](Inputs& file, bool compressed = false) {
    for (const char* name : {"query", "key", "value"}) file.floats(name, {1, 2, 6, 4}, compressed);
  };
  keep("softmax", 0, [&](Inputs& file) {
    attention(file);
    file.floats("d_output", {1, 2, 6, 4});
    file.integers("mask", {1, 6}, H5T_STD_U8LE);
  });
  keep("documents", 0, [&](Inputs& file) {
    attention(file, true);
    file.integers("documents", {1, 6}, H5T_STD_I64LE);
  });
  keep("features", 0, [&](Inputs& file) {
    attention(file);
    file.floats("random_projection", {8, 4});
    for (const char* name : {"scaling", "query_center", "key_center"}) file.floats(name, {2, 4});
  });
  keep("oprf", 0, [&](Inputs& file) {
    attention(file);
    file.floats("oprf_a", {2}, false, -0.5F);
    file.floats("random_projection", {2, 8, 4});
  });
  keep("windowed", 0, [&](Inputs& file) {
    attention(file);
    file.floats("gate", {2});
  });
  keep("linformer", 0, [&](Inputs& file) {
    attention(file);
    file.floats("key_projection", {3, 6});
    file.floats("value_projection", {2, 3, 6});
  });
  keep("convolution", 0, [&](Inputs& file) {
    attention(file);
    file.floats("key_projection", {4, 2});
  });
  keep("tokens", 1, [&](Inputs& file) {
    file.integers("tokens", {2, 5}, H5T_STD_I32LE);
    file.integers("lengths", {2}, H5T_STD_U16LE);
    file.integers("segments", {2, 5}, H5T_STD_U8LE);
  });
}

void models(const WriteSeed& seed) {
  const auto config = [&](const char* name, int naming, const json& values) {
    seed("config_json", name, with_text(values.dump(), std::string(1, static_cast<char>(naming))));
  };
  config("gpt2", 0, testing::tiny_gpt2().config);
  config("bert", 0, testing::tiny_bert().config);
  config("bert_without_head", 3, testing::tiny_bert(false).config);
  config("albert", 0, testing::tiny_albert().config);
  json llama = testing::tiny_llama().config;
  config("llama", 0, llama);
  llama["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 32}};
  config("llama3", 0, llama);
  llama["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 32}, {"mscale", 1.0}};
  config("yarn", 4, llama);

  const auto record = [&](const char* name, char kind, const std::string& text) {
    seed("records", name, with_text(text, std::string(1, kind)));
  };
  record("finetune", 0,
         R"({"source": "models/a", "source_fingerprint": "00ff", "beginnings": {"1_attention_transfer": "0a"}})");
  record("best", 1, R"({"step": 12, "validation_loss": 1.5, "file": "best.h5"})");
  Origin origin;
  origin.model_type = "gpt2";
  origin.source = "a";
  origin.format = "safetensors";
  origin.config = testing::tiny_gpt2().config.dump();
  origin.naming.prefix = "transformer.";
  origin.stored_types = {{"transformer.wte.weight", "F32"}};
  origin.file_names = {"vocab.txt", "1_Pooling/config.json"};
  record("origin", 2, origin.to_checkpoint().json);
}

}  // namespace

void write_model_seeds(const WriteSeed& seed) {
  vocabularies(seed);
  texts(seed);
  hdf5_inputs(seed);
  models(seed);
}

}  // namespace furlong::fuzzing
