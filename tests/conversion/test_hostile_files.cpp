// Malicious files: deep nesting, control characters in names, unknown architectures.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>

#include "conversion/export.h"
#include "conversion/finetune_record.h"
#include "conversion/import_model.h"
#include "conversion/recovery_file.h"
#include "tests/conversion/tiny_models.h"
#include "tests/formats/foreign_bytes.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t deep = 100'000;
std::string nested() { return std::string(deep, '[') + std::string(deep, ']'); }

class HostileFiles : public WithTemporaryFolder {
 protected:
  std::string written(const TinyModel& model = tiny_gpt2()) { return model.write(folder_ / "source"); }
  static std::string refused(const std::filesystem::path& source, const ImportOptions& options = {}) {
    return message_of<UserError>([&] { open_source_model(source, options); });
  }
  /// Returns the error about a checkpoint whose origin was changed.
  std::string refused_origin(const std::function<void(Origin&)>& change) {
    SourceModel model = open_source_model(written());
    change(*model.origin);
    write_model(model.model, model.origin, path("changed.h5"));
    return refused(path("changed.h5"));
  }
};

TEST_F(HostileFiles, RejectsDeeplyNestedJson) {
  const std::string source = written();
  const std::string good = content(source + "/config.json");
  for (const std::string& text :
       {nested(), "{\"model_type\": " + nested() + "}", replaced(good, "\"n_layer\": 2", "\"n_layer\": " + nested()),
        replaced(good, "{", "{\"more\": " + nested() + ",")}) {
    file("source/config.json", text);
    EXPECT_THAT(refused(source), HasSubstr("config.json: nested more than 64 deep"));
  }
  file("source/config.json", good);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    file(std::string("source/") + name, "{\"model\": " + nested() + "}");
    EXPECT_THAT(refused(source), HasSubstr(std::string(name) + ": nested more than 64 deep"));
    std::filesystem::remove(source + "/" + name);
  }
  EXPECT_THAT(message_of<UserError>([] {
                Vocabulary::from_json("{\"kind\": \"tokenizer\", \"symbols\": [], \"tokenizer\": " + nested() + "}",
                                      "f");
              }),
              HasSubstr("f: nested more than 64 deep"));
  EXPECT_THAT(refused_origin([](Origin& origin) { origin.config = nested(); }), HasSubstr("nested more than 64 deep"));
}

TEST_F(HostileFiles, RejectsUnknownOrigins) {
  EXPECT_THAT(refused_origin([](Origin& origin) { origin.model_type = "mamba\x1b"; }),
              AllOf(HasSubstr("changed.h5: its text 'origin' has the model_type 'mamba\\x1b'"),
                    HasSubstr("expected one of gpt2, llama")));
  EXPECT_THAT(refused_origin([](Origin& origin) { origin.config = "{"; }),
              HasSubstr("config.json in its text 'origin' is not valid JSON"));
  EXPECT_THAT(refused_origin([](Origin& origin) { origin.file_names.front() = "../\n"; }),
              HasSubstr("names the file '../\\x0a'"));
}

TEST_F(HostileFiles, RejectsMalformedOriginsAndRecords) {
  EXPECT_EQ(message_of<UserError>([] {
              Origin::from_checkpoint({R"({"model_type": 5})", {}, {}}, "f.h5");
            }),
            "f.h5: its text 'origin' is not what furlong convert writes; import the model again");
  file("finetune.json", R"({"source": 5})");
  EXPECT_THAT(message_of<UserError>([&] { FinetuneRecord record(folder_); }),
              HasSubstr("finetune.json: is not what furlong finetune writes; choose another --run-dir"));
  file("finetune.json", nested());
  EXPECT_THAT(message_of<UserError>([&] { FinetuneRecord record(folder_); }),
              HasSubstr("finetune.json: nested more than 64 deep"));
  std::filesystem::remove(path("finetune.json"));
  ASSERT_EQ(mkfifo(path("finetune.json").c_str(), 0666), 0);
  const int writer = open(path("finetune.json").c_str(), O_RDWR | O_CLOEXEC);  // makes a reader of the pipe block
  EXPECT_THAT(message_of<UserError>([&] { FinetuneRecord record(folder_); }), HasSubstr("finetune.json: "));
  close(writer);
}

// The settings of a small file must not determine how much memory is allocated.
TEST_F(HostileFiles, RejectsSettingsOfModelsLargerThanTheirFile) {
  Settings settings;
  settings.model.n_layers = 1;
  settings.model.d_model = 16;
  settings.model.attention.n_heads = 2;
  settings.model.attention.mechanism = "linear";
  settings.data.sequence_length = 8;
  SourceModel own{make_model(resolve(settings), Vocabulary::bytes(true), Device{}, DType::float32), {}, {}, ""};
  const std::string exported = path("exported");
  export_model(own, exported, {});
  EXPECT_EQ(open_source_model(exported).model.store->parameters().size(), own.model.store->parameters().size());
  Json config = Json::parse(content(exported + "/config.json"));
  config["furlong"]["settings"]["model"]["d_feedforward"] = 1'000'000;
  config["furlong"]["settings"]["model"]["n_layers"] = 4096;
  file("exported/config.json", config.dump());
  EXPECT_THAT(refused(exported),
              AllOf(HasSubstr("exported: its settings describe a model of "), HasSubstr("it stores")));

  own.model.settings.model.n_layers = 4096;
  write_model(own.model, {}, path("own.h5"));
  EXPECT_THAT(refused(path("own.h5")), HasSubstr("own.h5: its settings describe a model of "));
}

// A record of another run may name a folder that no file system can have.
TEST_F(HostileFiles, NamesInRecoveryRecordMayBeTooLong) {
  file("recovery.json", R"({"models": [{"name": "distillation", "checkpoint": ")" + std::string(5000, 'x') +
                            R"(/checkpoints/best.h5"}]})");
  FinetunePlan plan;
  plan.student.run_directory = folder_;
  EXPECT_EQ(write_recovery(plan, {}, {}), path("recovery.json"));
}

TEST_F(HostileFiles, EscapesAndShortensTextInMessages) {
  const std::string harm = "\x1b[2J\n\xc2\x85" + std::string(10'000, 'x');
  for (const char* key : {"model_type", "activation_function", "n_layer", "scale_attn_weights"}) {
    TinyModel tiny = tiny_gpt2();
    tiny.config[key] = harm;
    const std::string message = refused(written(tiny));
    EXPECT_THAT(message, AllOf(HasSubstr(key), HasSubstr("[2J"), HasSubstr("; expected"), Not(HasSubstr("\x1b")),
                               Not(HasSubstr("\xc2\x85"))));
    EXPECT_LT(message.size(), 600U);
  }
  TinyModel llama = tiny_llama();
  llama.config["rope_scaling"] = {{"rope_type", harm}, {"factor", 2}};
  EXPECT_THAT(refused(written(llama)),
              AllOf(HasSubstr("rope_type: found \\x1b[2J\\x0a"), HasSubstr("...; expected default")));
}

TEST_F(HostileFiles, EscapesTensorNamesInReports) {
  TinyModel tiny = tiny_gpt2();
  tiny.add("more\x1b[2J\n", {2}, 1);
  std::string report;
  ImportOptions options;
  options.on_fault = [&](const TensorReport& found) { report = found.text(); };
  EXPECT_THAT(refused(written(tiny), options), HasSubstr("1 unexpected (more\\x1b[2J\\x0a [2])"));
  EXPECT_THAT(report, AllOf(HasSubstr("    more\\x1b[2J\\x0a [2]\n"), Not(HasSubstr("\x1b"))));
}

// Those that the model does not use: the export contains them, too.
TEST_F(HostileFiles, RejectsCarriedTensorsThatAreNotFinite) {
  TinyModel tiny = tiny_gpt2();
  tiny.add("score.weight", {3, 8}, 1);
  tiny.values.at("score.weight")[5] = std::numeric_limits<float>::quiet_NaN();
  ImportOptions options;
  options.allow_unexpected = true;
  EXPECT_THAT(refused(written(tiny), options), HasSubstr("tensor score.weight contains nan"));
  SourceModel model = open_source_model(written());
  const float infinite = std::numeric_limits<float>::infinity();
  const auto* bytes = reinterpret_cast<const std::byte*>(&infinite);
  model.origin->carried.push_back({"score.weight", "float32", {1}, {bytes, bytes + sizeof infinite}});
  write_model(model.model, model.origin, path("changed.h5"));
  SourceModel changed = open_source_model(path("changed.h5"));
  EXPECT_THAT(message_of<UserError>([&] { export_model(changed, path("out"), {}); }),
              HasSubstr("tensor score.weight contains inf"));
}

}  // namespace
}  // namespace furlong
