// furlong embed and furlong score as their pages show them, and what they and furlong predict refuse.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "framework/io/hdf5.h"
#include "tests/cli/page_example.h"
#include "tests/cli/program.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class SequencesProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    std::string fasta, table = "id,sequence\n";
    for (int i = 0; i < 40; ++i) {
      const std::string sequence = std::string(static_cast<std::size_t>(i % 5), 'M') + "KVLAAGWDE";
      fasta += fmt::format(">protein_{} of a test\n{}\n", i, sequence);
      table += fmt::format("{},{}\n", i, sequence);
    }
    std::filesystem::create_directories(path("data"));
    file("data/proteins.fa", fasta);
    file("sequences.csv", table);
    file("wild_type.fasta", ">wild\nMKVLAAGWDE\n");
    file("mutations.txt", "K2R\nK2R:G7D\n");
    file("protein.yaml", R"(data:
  dataset: proteins.h5
  sequence_length: 24
  batch_size: 4
  sampler: documents
model:
  architecture: encoder
  position: learned
  n_layers: 2
  d_model: 16
  n_heads: 2
objective:
  name: masked_tokens
schedule:
  warmup_steps: 2
trainer:
  max_steps: 6
log:
  level: error
  progress: none
)");
  }
  void run_line(const std::string& line) const { testing::run_line(folder_, line); }
  void run_example(const std::string& page) const { testing::run_example(folder_, page, 5); }
  hdf5::Shape shape(const std::string& name, const std::string& dataset) const {
    return hdf5::File::open(path(name)).dataset(dataset).shape();
  }
};

TEST_F(SequencesProgramTest, ExamplesOfThePageOnEmbedRun) {
  run_example("embed.md");
  testing::check_config(folder_, "embed.md");
  EXPECT_EQ(shape("vectors.h5", "embeddings"), (hdf5::Shape{40, 16}));
  // 9 residues and 0 to 4 more, eight times each; <document> is left out.
  EXPECT_EQ(shape("tokens.h5", "embeddings"), (hdf5::Shape{8 * (5 * 9 + 10), 16}));
  const hdf5::File vectors = hdf5::File::open(path("vectors.h5"));
  EXPECT_EQ(vectors.integer("layer"), 2);
  EXPECT_EQ(vectors.integer("normalized"), 0);
  EXPECT_EQ(vectors.text("weights"), "raw");
  EXPECT_EQ(vectors.text("checkpoint"), "runs/protein/checkpoints/best.h5");
  EXPECT_GT(vectors.integer("step"), 0);
  EXPECT_THAT(content(path("vectors.tsv")), StartsWith("id\t0\t1\t"));
  EXPECT_THAT(content(path("vectors.tsv")), HasSubstr("\n39\t"));
  file("gap.txt", "MKV\n\nAGW\n");
  const Finished gap = furlong({"embed", path("runs/protein"), path("gap.txt"), "-o", path("gap.npy")});
  EXPECT_THAT(gap.err, HasSubstr("empty sequences: 1, rows of NaN"));
  EXPECT_EQ(content(path("gap.npy")).size(), 128 + 3 * 16 * sizeof(float));
  const Finished checkpoint = furlong({"embed", path("runs/protein/checkpoints/best.h5"), path("wild_type.fasta"), "-o",
                                       path("one.tsv"), "--layer", "-2"});
  EXPECT_EQ(checkpoint.status, 0) << checkpoint.err;
  EXPECT_THAT(checkpoint.out, HasSubstr("1 sequences, 11 tokens, vectors of 16 numbers from layer 1"));
  EXPECT_THAT(content(path("one.tsv")), HasSubstr("\nwild\t"));
}

TEST_F(SequencesProgramTest, ExamplesOfThePageOnScoreRun) {
  run_example("score.md");
  EXPECT_THAT(content(path("scores.tsv")), StartsWith("id\ttokens\tlog_likelihood\tperplexity\nprotein_0\t9\t-"));
  const Finished mutations =
      furlong({"score", path("runs/protein"), path("wild_type.fasta"), "--mutations", path("mutations.txt"), "--json"});
  ASSERT_EQ(mutations.status, 0) << mutations.err;
  const Json found = Json::parse(mutations.out);
  EXPECT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[1]["masked_marginal"].is_number() && found[1]["wild_type_marginal"].is_number());
  const Finished positions = furlong({"score", path("runs/protein"), path("wild_type.fasta"), "--positions"});
  EXPECT_THAT(positions.out, StartsWith("id\tposition\ttoken\tlog_probability\nwild\t1\tM\t-"));
}

TEST_F(SequencesProgramTest, WeightsAreTheAverageOrRaw) {
  run_line("furlong prepare fasta data/proteins.fa --output proteins.h5");
  run_line("furlong train protein.yaml --set optimizer.ema_decay=0.9 --run-dir runs/ema");
  const std::string run = path("runs/ema"), input = path("wild_type.fasta");
  std::vector<std::string> scores;
  for (const char* weights : {"ema", "raw"}) {
    const Finished written = furlong({"export", run, path(weights), "--weights", weights});
    ASSERT_EQ(written.status, 0) << written.err;
    scores.push_back(furlong({"score", run, input, "--weights", weights}).out);
    EXPECT_EQ(furlong({"score", path(weights), input}).out, scores.back());
    const Finished found = furlong({"evaluate", run, "--data", path("proteins.h5"), "--weights", weights, "--json"});
    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_EQ(Json::parse(found.out)["weights"], weights);
  }
  EXPECT_NE(scores[0], scores[1]);
  expect_user_error(furlong({"export", path("raw"), path("again"), "--weights", "raw"}),
                    {"--weights", "one set of weights"});
}

TEST_F(SequencesProgramTest, InvalidInputIsAUserErrorAndNothingIsHalfWritten) {
  run_line("furlong prepare fasta data/proteins.fa --alphabet protein --split-by document --output proteins.h5");
  run_line("furlong train protein.yaml --run-dir runs/protein");
  const std::string model = path("runs/protein"), good = path("wild_type.fasta");
  const std::string empty = file("empty.fasta", ""), unknown = file("unknown.fasta", ">a\nMKV\n>b\nMK1\n"),
                    longer = file("long.fasta", ">a\nMKV\n>b\n" + std::string(40, 'A') + "\n"),
                    mismatch = file("mismatch.txt", "K2R\nA3G\n");
  for (const auto& [input, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {empty, {"empty.fasta", "no sequence"}},
           {unknown, {"unknown.fasta:4:3", "'1'"}},
           {longer, {"long.fasta", "sequence 2 (b)", "24 tokens"}}}) {
    expect_user_error(furlong({"embed", model, input, "-o", path("out.h5")}), parts);
    expect_user_error(furlong({"score", model, input}), parts);
    expect_user_error(furlong({"score", model, input, "-o", path("out.tsv")}), parts);
  }
  expect_user_error(furlong({"score", model, good, "--mutations", mismatch}),
                    {"mismatch.txt:2", "A3G", "has V at position 3"});
  expect_user_error(furlong({"score", model, good, "-o", path("out.csv")}), {"out.csv", ".tsv or .json"});
  expect_user_error(furlong({"embed", model, good, "-o", path("out.txt")}), {"out.txt", ".npy"});
  expect_user_error(furlong({"embed", model, path("in.tsv"), "-o", file("in.tsv", "MKV\n")}),
                    {"both input and output"});
  const std::string best = path("runs/protein/checkpoints/best.h5"), ids = file("ids.txt", "1 2 3\n");
  expect_user_error(furlong({"embed", model, good, "-o", best}), {"best.h5: is both input and output"});
  expect_user_error(furlong({"logits", best, ids, "-o", best}), {"best.h5: is both input and output"});
  expect_user_error(furlong({"logits", model, ids, "-o", model + "/config.yaml"}),
                    {"config.yaml: is both input and output"});
  expect_user_error(furlong({"logits", model, ids, "-o", path("l.npy")}), {"l.npy", "'.npy'; expected .h5 or .hdf5"});
  ASSERT_EQ(furlong({"logits", model, ids, "-o", path("l.h5")}).status, 0);
  const hdf5::File logits = hdf5::File::open(path("l.h5"));
  EXPECT_EQ(logits.text("checkpoint"), best);
  EXPECT_EQ(logits.text("weights"), "raw");
  EXPECT_EQ(logits.text("dtype"), "float32");
  EXPECT_GT(logits.integer("step"), 0);
  ASSERT_EQ(furlong({"export", model, path("exported")}).status, 0);
  const std::string letters = file("letters.txt", "MkV<document>\nW\n");
  for (const std::string& source : {model, best, path("exported")})
    EXPECT_EQ(furlong({"tokenize", source, letters}).out, "10 8 17 28\n18\n") << source;
  EXPECT_EQ(furlong({"tokenize", model, file("ids.txt", "10 28 18\n"), "--decode"}).out, "M<document>W\n");
  EXPECT_EQ(furlong({"tokenize", model, letters, "--tokens"}).out, "M K V <document>\nW\n");
  expect_user_error(furlong({"tokenize", model, file("wrong.txt", "MKV\nM1V\n")}), {"wrong.txt, line 2: '1' at"});
  expect_user_error(furlong({"tokenize", model, letters, "--add-special-tokens"}), {"no tokenizer"});
  expect_user_error(furlong({"score", path("exported"), good, "-o", path("exported/config.json")}),
                    {"config.json: is both input and output"});
  std::string uneven;
  for (int i = 0; i < 8192; ++i) uneven += "0 ";
  for (int i = 0; i < 8192; ++i) uneven += "\n0";
  expect_user_error(furlong({"logits", best, file("uneven.txt", uneven), "-o", path("logits.h5")}),
                    {"uneven.txt: 8193 rows, padded to the longest of 8192 ids, exceed 67108864 ids"});
  expect_user_error(furlong({"logits", best, "/dev/zero", "-o", path("logits.h5")}), {"it is a device"});
  expect_user_error(furlong({"logits", best, file("damaged.h5", "\x89HDF\r\n\x1a\n" + std::string(500, 'x')), "-o",
                             path("logits.h5")}),
                    {"damaged.h5: "});
  expect_user_error(furlong({"logits", best, file("gap.txt", "1 2\n\n3\n"), "-o", path("logits.h5")}),
                    {"gap.txt:2: the line is empty"});
  expect_user_error(furlong({"score", model, good, "--mutations", path("m.tsv"), "-o", file("m.tsv", "K2R\n")}),
                    {"m.tsv: is both input and output"});
  expect_user_error(furlong({"score", model, good, "--mutations", file("mac.txt", "K2R\rL4A\r")}),
                    {"mac.txt:1: found a carriage return inside a line"});
  expect_user_error(furlong({"embed", model, good, "-o", path("out.h5"), "--layer", "3"}), {"--layer: 3"});
  for (const char* out : {"out.tsv", "out.jsonl"})
    expect_user_error(furlong({"predict", model, good, "-o", path(out)}), {"predicts tokens, not labels"});
  expect_user_error(furlong({"predict", model, good}), {"predicts tokens, not labels"});
  expect_user_error(furlong({"predict", model, good, "-o", path("out.json")}), {"out.json", ".tsv or .jsonl"});
  expect_user_error(furlong({"predict", model, path("in.tsv"), "-o", path("in.tsv")}), {"both input and output"});
  expect_user_error(furlong({"predict", model, good, "-o", path("out.tsv"), "--json"}), {"--json"});
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("out."))) << "a file that is not whole";
}

TEST_F(SequencesProgramTest, WarnsOfSequencesLongerThanThoseOfTheTraining) {
  run_line("furlong prepare fasta data/proteins.fa --alphabet protein --split-by document --output proteins.h5");
  run_line("furlong train protein.yaml --set model.position=rotary --run-dir runs/rotary");
  const std::string input = file("long.fasta", ">a\nMKV\n>b\n" + std::string(24, 'A') + "\n");
  const Finished found = furlong({"score", path("runs/rotary"), input});
  EXPECT_EQ(found.status, 0);
  EXPECT_THAT(found.err, HasSubstr("1 of 2 sequences are longer than those that the model was trained on"));
  EXPECT_EQ(furlong({"score", path("runs/rotary"), path("wild_type.fasta")}).err, "");
  ASSERT_EQ(furlong({"export", path("runs/rotary"), path("exported")}).status, 0);
  EXPECT_THAT(furlong({"score", path("exported"), input}).err, ::testing::Not(HasSubstr("longer than")));
}

TEST_F(SequencesProgramTest, SeparatorNeedsATextInput) {
  run_line("furlong prepare fasta data/proteins.fa --alphabet protein --split-by document --output proteins.h5");
  run_line("furlong train protein.yaml --run-dir runs/protein");
  const std::string fasta = path("wild_type.fasta"), text = file("lines.txt", "MKV\nAGW\n");
  for (const char* command : {"embed", "score"}) {
    const std::vector<std::string> words{command, path("runs/protein"), "--separator", "file", "-o", path("all.tsv")};
    const auto with = [&](const std::vector<std::string>& inputs) {
      std::vector<std::string> all = words;
      all.insert(all.begin() + 2, inputs.begin(), inputs.end());
      return furlong(all);
    };
    expect_user_error(with({fasta}), {"--separator has no effect: no input is read as text"});
    EXPECT_EQ(with({fasta, text}).status, 0);
  }
}

TEST_F(SequencesProgramTest, HelpFitsIn80Columns) {
  for (const char* command : {"embed", "score", "predict"}) {
    std::istringstream lines(furlong({command, "--help"}).out);
    int examples = 0;
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 80u) << line;
      examples += line.starts_with("  furlong ");
    }
    EXPECT_EQ(examples, 2);
  }
}

}  // namespace
}  // namespace furlong
