// Writes the seed inputs of every fuzz target: fuzz_seeds FOLDER creates FOLDER/TARGET/NAME.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "communication/job_store/store_protocol.h"
#include "datasets/prepare/dataset_writer.h"
#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/sentencepiece_proto.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"
#include "framework/io/hdf5.h"
#include "tests/conversion/tiny_gguf.h"
#include "tests/datasets/prepare/compress.h"
#include "tests/datasets/prepare/png_file.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/target.h"

namespace {

using namespace furlong;
using namespace furlong::testing;
using fuzzing::content;
using fuzzing::with_text;
namespace fs = std::filesystem;
using nlohmann::json;

fs::path folder;

void seed(const std::string& target, const std::string& name, const std::string& bytes) {
  write_file(folder / target / name, bytes);
}

void tensors() {
  seed("safetensors", "types",
       safetensors_file(
           R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
           R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
           R"("h":{"dtype":"F16","shape":[2],"data_offsets":[49,53]},)"
           R"("c":{"dtype":"I64","shape":[1,2],"data_offsets":[32,48]},)"
           R"("d":{"dtype":"BOOL","shape":[],"data_offsets":[48,49]}})",
           std::string(53, '\1')));
  seed("safetensors", "empty", safetensors_file("{}", ""));
  const std::vector<PickledTensor> tensors = {{"a.weight", "FloatStorage", "0", 12, 0, {3, 4}, {4, 1}},
                                              {"t", "FloatStorage", "0", 12, 1, {2, 3}, {1, 4}},
                                              {"ids", "LongStorage", "1", 3, 0, {1, 3}, {3, 1}}};
  const std::vector<StorageBytes> storages = {{"0", 12, std::string(48, '\2')}, {"1", 3, std::string(24, '\3')}};
  const std::string pickle = pickled_state(tensors);
  seed("pickle", "state", pickle);
  for (const bool deflate : {false, true})
    seed("pytorch", deflate ? "deflated" : "zip", pytorch_zip(pickle, storages, deflate));
  seed("pytorch", "wide", pytorch_zip(pickle, storages, false, true));
  seed("pytorch", "older", pytorch_older(pickled_state(tensors, true), storages));
  std::vector<GgufTensor> quantized;
  for (const auto& [type, elements, bytes] : {std::tuple{2u, 32u, 18u},
                                              {3u, 32u, 20u},
                                              {6u, 32u, 22u},
                                              {7u, 32u, 24u},
                                              {8u, 32u, 34u},
                                              {12u, 256u, 144u},
                                              {13u, 256u, 176u},
                                              {14u, 256u, 210u}})
    quantized.push_back({"blk." + std::to_string(type), {elements, 1}, type, std::string(bytes, '\4')});
  const std::vector<std::string> pairs = {gguf_pair("general.alignment", 4, packed<std::uint32_t>({32})),
                                          gguf_real("eps", 1e-5F), gguf_text_pair("name", "llama"),
                                          gguf_pair("types", 9, gguf_array(5, 3, packed<std::int32_t>({1, 2, 3}))),
                                          gguf_pair("deep", 9, gguf_array(9, 1, gguf_array(0, 2, "xy")))};
  seed("gguf", "types", gguf_file(pairs, quantized));
  seed("gguf", "model", tiny_gguf());
  std::string tokens, scores, kinds;
  const std::vector<std::pair<std::string, int>> pieces = {{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}, {"\u2581", 1},
                                                           {"a", 1},     {"b", 1},   {"ab", 1},   {"\u2581ab", 1}};
  for (const auto& [piece, kind] : pieces) {
    tokens += gguf_text(piece);
    scores += packed<float>({-static_cast<float>(piece.size())});
    kinds += packed<std::int32_t>({kind});
  }
  seed("gguf", "sentencepiece",
       gguf_file({gguf_text_pair("tokenizer.ggml.model", "llama"),
                  gguf_pair("tokenizer.ggml.tokens", 9, gguf_array(8, pieces.size(), tokens)),
                  gguf_pair("tokenizer.ggml.scores", 9, gguf_array(6, pieces.size(), scores)),
                  gguf_pair("tokenizer.ggml.token_type", 9, gguf_array(5, pieces.size(), kinds))},
                 {}));
}

/// A normalization map that turns "a" into "b".
std::string normalization_map() {
  std::vector<std::uint32_t> units(512, 0);
  units[0] = 256u << 10;
  units[256 ^ 'a'] = 1u << 10 | 1 << 8 | 'a';
  units[256 ^ 'a' ^ 1] = 0x80000000;
  return packed<std::uint32_t>({2048}) + packed(units) + std::string("b\0", 2);
}

SentencePieceProto pieces(bool bpe) {
  using Type = SentencePieceProto::Type;
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, Type::unknown},
                  {"<s>", 0, Type::control},
                  {"</s>", 0, Type::control},
                  {"<pad>", 0, Type::control},
                  {"<sep>", 0, Type::user_defined}};
  for (const char* piece : {"\u2581", "a", "b", "c", "ab", "abc", "\u2581a", "\u2581ab"})
    proto.pieces.push_back({piece, -static_cast<float>(proto.pieces.size())});
  if (bpe) {
    for (int byte = 0; byte < 256; ++byte) proto.pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, Type::byte});
  }
  proto.bpe = proto.byte_fallback = bpe;
  proto.beginning = 1, proto.end = 2, proto.padding = 3;
  return proto;
}

void tokenizers() {
  SentencePieceProto proto = pieces(false);
  seed("sentencepiece", "unigram", with_text(proto.serialized(), "abc ab <sep> d\xc3\xa9"));
  proto.normalization_map = normalization_map();
  seed("sentencepiece", "map", with_text(proto.serialized(), "abc a"));
  seed("sentencepiece", "bpe", with_text(pieces(true).serialized(), "abcab \xff <s>"));

  const auto add = [](const std::string& name, const json& tokenizer, const std::string& text) {
    seed("tokenizer_json", name, with_text(tokenizer.dump(), text));
  };
  const fs::path made = folder / "made";
  const json bytes = json::parse(content(fs::path(bpe_tokenizer(made)) / "tokenizer.json"));
  add("byte_level", bytes, "the thin \xc3\xa9\xff<|endoftext|>");
  json small = bytes;
  small["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {" ", 3}, {"<unk>", 4}, {"<0x41>", 5}, {"\u2581", 6}};
  small["model"]["merges"] = {"a b"};
  small["added_tokens"] = json::array();
  small["pre_tokenizer"] = small["decoder"] = nullptr;
  add("plain", small, "ab a b");
  const auto variant = [&](const std::string& name, const json& change, const std::string& text) {
    json changed = small;
    changed.merge_patch(change);
    add(name, changed, text);
  };
  const auto steps = [](const char* member, const json& items) { return json{{"type", "Sequence"}, {member, items}}; };
  variant("fallback",
          {{"model", {{"byte_fallback", true}, {"unk_token", "<unk>"}, {"fuse_unk", true}, {"ignore_merges", true}}},
           {"decoder", steps("decoders", {{{"type", "ByteFallback"}},
                                          {{"type", "Fuse"}},
                                          {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                                          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})},
           {"normalizer",
            steps("normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}},
                                  {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}})}},
          "ab A b\xc3\xa9");
  variant(
      "normalizers",
      {{"normalizer", steps("normalizers", {{{"type", "NFKC"}},
                                            {{"type", "NFD"}},
                                            {{"type", "Lowercase"}},
                                            {{"type", "StripAccents"}},
                                            {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}},
                                            {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "a"}},
                                            {{"type", "BertNormalizer"},
                                             {"clean_text", true},
                                             {"handle_chinese_chars", true},
                                             {"strip_accents", nullptr},
                                             {"lowercase", true}}})}},
      " AB  \xc3\xa9 \xe4\xb8\xad");
  variant(
      "pre_tokenizers",
      {{"pre_tokenizer",
        steps(
            "pretokenizers",
            {{{"type", "Split"},
              {"pattern", {{"Regex", "\\p{L}+|\\d{1,3}"}}},
              {"behavior", "Isolated"},
              {"invert", false}},
             {{"type", "Split"}, {"pattern", {{"String", "b"}}}, {"behavior", "MergedWithPrevious"}, {"invert", true}},
             {{"type", "Digits"}, {"individual_digits", true}},
             {{"type", "Punctuation"}, {"behavior", "Contiguous"}},
             {{"type", "WhitespaceSplit"}},
             {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", true}}})}},
      "ab 1234, a-b");
  json words = small;
  words["normalizer"] = {{"type", "BertNormalizer"},
                         {"clean_text", true},
                         {"handle_chinese_chars", true},
                         {"strip_accents", nullptr},
                         {"lowercase", true}};
  words["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  words["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  words["model"] = {{"type", "WordPiece"},
                    {"unk_token", "[UNK]"},
                    {"continuing_subword_prefix", "##"},
                    {"max_input_chars_per_word", 100},
                    {"vocab", {{"[UNK]", 0}, {"[CLS]", 1}, {"[SEP]", 2}, {"a", 3}, {"##b", 4}, {"##a", 5}, {"!", 6}}}};
  words["added_tokens"] = {{{"id", 1},
                            {"content", "[CLS]"},
                            {"single_word", true},
                            {"lstrip", true},
                            {"rstrip", true},
                            {"normalized", true},
                            {"special", true}}};
  words["post_processor"] = {{"type", "TemplateProcessing"},
                             {"single",
                              {{{"SpecialToken", {{"id", "[CLS]"}, {"type_id", 0}}}},
                               {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                               {{"SpecialToken", {{"id", "[SEP]"}, {"type_id", 0}}}}}},
                             {"pair", json::array()},
                             {"special_tokens",
                              {{"[CLS]", {{"id", "[CLS]"}, {"ids", {1}}, {"tokens", {"[CLS]"}}}},
                               {"[SEP]", {{"id", "[SEP]"}, {"ids", {2}}, {"tokens", {"[SEP]"}}}}}}};
  add("wordpiece", words, "Abab! [CLS] xyz");
  const json unigram = {
      {"normalizer",
       steps("normalizers", {{{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(normalization_map())}},
                             {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}})},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", true}}},
      {"model",
       {{"type", "Unigram"},
        {"unk_id", 0},
        {"vocab", json::parse(R"([["<unk>", 0], ["a", -1], ["b", -2], ["\u2581", -3], ["ab", -1.5]])")}}}};
  add("unigram", unigram, "ab  ba c");
  fs::remove_all(made);
}

void frames() {
  using namespace furlong::store;
  const auto request = [](Kind kind, std::vector<std::string> keys, const std::string& value = "",
                          std::int64_t delta = 0) {
    Request one;
    one.kind = kind;
    one.id = 3;
    one.keys = std::move(keys);
    one.timeout = 1000;
    one.delta = delta;
    return encode(one, value);
  };
  const std::string cut(1, '\x0a');
  seed("handshakes", "store_hello", std::string(1, 0) + encode([] {
                                      Hello hello;
                                      hello.host = "node07";
                                      return hello;
                                    }()));
  seed("handshakes", "client_refused",
       std::string(1, 1) + encode(Challenge{}) + encode(Refusal{.reason = Refused::rank, .detail = "4"}));
  seed("handshakes", "client_welcome", std::string(1, 2) + "node01");
  seed("handshakes", "rank_greeting",
       std::string(1, 3) + "FURLINK1" + std::string("\1\0\0\0", 4) + std::string(16, 't'));
  seed("store_frames", "requests",
       cut + request(Kind::get, {"a"}) + request(Kind::set, {"a"}, "12") + request(Kind::add, {"a"}, "", 5) +
           request(Kind::wait, {"a", "b"}) + request(Kind::check, {"a"}) + request(Kind::report_fault, {}, "broke") +
           request(Kind::goodbye, {}));
  Hello hello;
  hello.rank = 1, hello.world_size = 4, hello.host = "node07";
  seed("store_frames", "handshake",
       cut + encode(Challenge{}) + encode(hello) + encode(Welcome{.host = "node01", .code = {}}) +
           encode(Refusal{.reason = Refused::rank, .detail = "4"}) + encode_heartbeat() +
           encode(Fault{2, "node02", "sent nothing for 10.0 s"}) + encode_reply(3, Status::ok, 8) + encode_number(17));
}

void stores() {
  const std::string path = (folder / "made.h5").string();
  const auto keep = [&](const std::string& target, const std::string& name) {
    seed(target, name, content(path));
    fs::remove(path);
  };
  // The layout of DatasetWriter without chunks and chunk checksums: small, and mutations are not rejected by checksums.
  const auto store = [&](const Vocabulary& vocabulary, const std::vector<std::uint8_t>& tokens, bool labels) {
    const std::vector<std::uint64_t> documents = {0, 4, 9, tokens.size()}, train = {0, 4, 5, 8},
                                     test = {9, tokens.size()};
    AtomicFile place(path);
    hdf5::File file = hdf5::File::create(place);
    file.write("tokens", hdf5::Type::u8, {tokens.size()}, tokens.data());
    file.write("documents", hdf5::Type::u64, {documents.size()}, documents.data());
    file.write("splits/train", hdf5::Type::u64, {2, 2}, train.data());
    file.write("splits/test", hdf5::Type::u64, {1, 2}, test.data());
    const std::vector<std::int32_t> of_documents = {0, 1, 0};
    if (labels) file.write("labels", hdf5::Type::i32, {3}, of_documents.data()).set_integer("documents_per_label", 1);
    file.set_text("format", tokenized_dataset_format);
    file.set_integer("format_version", tokenized_dataset_version);
    file.set_text("vocabulary", vocabulary.to_json());
    file.set_text("provenance", "{}");
    file.close();
    place.commit();
  };
  store(Vocabulary::copy(2), {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2}, false);
  keep("token_store", "splits");
  store(Vocabulary::dna().with_labels({"no", "yes"}), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15}, true);
  keep("token_store", "labels");
  const auto checkpoint = [&](const std::string& name, const std::string& vocabulary, const std::string& shards) {
    {
      CheckpointWriter writer(path);
      const std::vector<float> values(6, 1.5F);
      const std::vector<std::int64_t> shape = {2, 3}, one = {3}, none = {0};
      writer.tensor("parameters/weight", "float32", shape, values.data());
      writer.tensor("parameters/half", "bfloat16", one, values.data());
      writer.tensor("nothing", "int64", none, values.data());
      writer.text("config", "model:\n  n_layers: 2\n");
      writer.text("vocabulary", vocabulary);
      writer.text("empty", "");
      if (!shards.empty()) writer.text("shards", shards);
      writer.integer("trainer/step", 12);
      writer.number("trainer/loss", 0.5);
      writer.finish();
    }
    keep("checkpoint", name);
  };
  checkpoint("plain", Vocabulary::dna().to_json(), "");
  ShardIndex index;
  index.files = {{"step_00000001.shard_1_of_2.h5", 17}};
  index.tensors["parameters/split"] = {"float32", {2, 2}};
  checkpoint("sharded", Vocabulary::copy(3).with_encoder_tokens().to_json(), index.to_json());
}

void texts() {
  const auto bytes = [](int first, int second) {
    return std::string{static_cast<char>(first), static_cast<char>(second)};
  };
  seed("fasta", "dna", bytes(0, 0) + ">one comment\nACGTNacgt\n;note\nGG TT\n>two\r\nAC\r\n");
  seed("fasta", "protein", bytes(2, 1) + ">p\nMKVLA*\nJZ?\n");
  seed("fasta", "lines", bytes(4, 1) + "one\ntwo\r\n\nthree");
  seed("fasta", "blank", bytes(5, 1) + "one\ntwo\n\n\n  \nthree\r\n\r\nfour");
  const std::string two_images("\0\0\x08\x03\0\0\0\2\0\0\0\1\0\0\0\2xxxx", 20);
  seed("images", "idx", bytes(0, 0) + two_images);
  seed("images", "cifar10", bytes(16, 0) + std::string(1, 7) + std::string(3072, 'x'));
  seed("images", "idx_labels", bytes(6, 2) + two_images);
  seed("images", "pgm", bytes(2, 0) + "P5 # gray\n2 2 255\nabcd");
  seed("images", "ppm", bytes(3, 0) + "P6\n1 1\t9\r\1\2\3");
  seed("images", "png",
       bytes(3, 0) + png_file({.columns = 2, .rows = 2, .color = PNG_COLOR_TYPE_RGB, .lines = {"abcdef", "ghijkl"}}));
  seed("images", "png_interlaced",
       bytes(2, 0) + png_file({.columns = 3, .rows = 2, .bits = 2, .lines = {"a", "b"}, .interlaced = true}));
  seed("images", "png_palette",
       bytes(2, 0) + png_file({.columns = 3,
                               .rows = 1,
                               .color = PNG_COLOR_TYPE_PALETTE,
                               .lines = {std::string("\0\1\0", 3)},
                               .palette = {{1, 2, 3}, {4, 5, 6}}}));
  seed("labeled", "tsv", bytes(0, 0) + "good film\tyes\nbad film\tno\n");
  seed("labeled", "tsv_header", bytes(0, 1) + "label\ttext\nyes\tgood\n");
  seed("labeled", "csv", bytes(1, 7) + "text,other,label\n\"a \"\"b\"\"\nc\",d,yes\nx,y,no\n");
  seed("labeled", "jsonl", bytes(2, 0) + "{\"text\": \"a\", \"label\": 1}\n{\"text\": [1, 255], \"label\": true}\n");
  seed("labeled", "dna", bytes(0, 24) + "ACGTX\tyes\n");
  seed("compressed", "gzip", gzip("some text, some text") + gzip("another member"));
  seed("compressed", "xz", xz("some text, some text"));
  seed("compressed", "zstd", zstd("some text, some text") + zstd("another frame"));
  seed("compressed", "plain", "some text");
  seed("yaml", "all",
       "# comment\ntitle: \"a \\\"b\\\"\"\nmodel:\n  layers: 1e1\n  device: cuda:0\n  blocks: [linear, 'softmax']\n"
       "  attention: {mechanism: linear, causal: false}\ntrainer:\n  rate: .5\n  warmup: 3\n  store: a b/c.h5\n  "
       "debug: false\n");
  seed("yaml", "anchors",
       "model: &m\n  layers: &n 3\n  blocks:\n    - linear\n    - *n\ntrainer: {store: ~/a, rate: *n}\n");
  seed("yaml", "includes",
       "include: [a.yaml, ./b.yaml]\ntrainer: {rate: 2}\n\x1emodel: {layers: 4, place: gpu}\n\x1einclude: c.yaml\n"
       "trainer: {warmup: 3}\n\x1etrainer:\n  sources:\n    - {dataset: a.h5, weight: 1}\n\x1fmodel.layers=6\x1f"
       "trainer.lr=.5\x1fmodel.blocks=[linear]");
  seed("yaml", "block", "title: |\n  two\n  lines\ntrainer:\n  store: >-\n    folded\n    text\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  folder = argv[1];
  fs::create_directories(folder);
  tensors();
  tokenizers();
  frames();
  stores();
  texts();
  fuzzing::write_model_seeds(seed);
}
