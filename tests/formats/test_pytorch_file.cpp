#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <unordered_map>

#include "formats/tensor_file.h"
#include "framework/core/error.h"
#include "tests/formats/foreign_bytes.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::floats;
using ::testing::HasSubstr;
using testing::message_of;
using testing::packed;
using testing::patched;
using testing::PickledTensor;
using testing::StorageBytes;
using testing::ZipPart;

class PytorchFile : public testing::WithTemporaryFolder {
 protected:
  std::string failure(const std::string& bytes) {
    const std::string place = file("lie", bytes);
    const std::string message = message_of<UserError>([&] {
      const auto opened = open_pytorch(place);
      for (const ForeignTensor& tensor : opened->tensors()) floats(*opened, tensor.name);
    });
    EXPECT_TRUE(message.starts_with(place)) << message;
    return message;
  }
  /// Returns the error of an archive with one pickle and one storage of four floats.
  std::string pickle_failure(const std::string& pickle) { return failure(testing::pytorch_zip(pickle, {four})); }
  std::string tensor_failure(const PickledTensor& tensor) { return pickle_failure(testing::pickled_state({tensor})); }

  const std::vector<float> twelve_floats = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const StorageBytes four = {"0", 4, packed<float>({1, 2, 3, 4})};
  const PickledTensor whole = {"w", "FloatStorage", "0", 4, 0, {4}, {1}};
};

/// Views of shared storages in every layout, and every type.
std::vector<PickledTensor> some_tensors() {
  return {{"matrix", "FloatStorage", "0", 12, 0, {3, 4}, {4, 1}},
          {"transposed", "FloatStorage", "0", 12, 0, {4, 3}, {1, 4}},
          {"inner", "FloatStorage", "0", 12, 5, {2, 2}, {4, 1}},
          {"steps", "FloatStorage", "0", 12, 1, {2, 1, 3}, {2, 9223372036854775807, 4}},
          {"scalar", "FloatStorage", "0", 12, 7, {}, {}},
          {"none", "FloatStorage", "0", 12, 99, {0, 5}, {5, 1}},
          {"double", "DoubleStorage", "1", 2, 0, {2}, {1}},
          {"half", "HalfStorage", "2", 2, 0, {2}, {1}},
          {"brain", "BFloat16Storage", "3", 2, 0, {2}, {1}},
          {"long", "LongStorage", "4", 3, 0, {1, 3}, {0, 1}},
          {"int", "IntStorage", "5", 1, 0, {1}, {1}},
          {"short", "ShortStorage", "6", 1, 0, {1}, {1}},
          {"char", "CharStorage", "7", 1, 0, {1}, {1}},
          {"byte", "ByteStorage", "8", 1, 0, {1}, {1}},
          {"bool", "BoolStorage", "9", 2, 0, {2}, {1}}};
}

std::vector<StorageBytes> some_storages(const std::vector<float>& twelve) {
  return {{"0", 12, packed(twelve)},
          {"1", 2, packed<double>({0.5, -3})},
          {"2", 2, packed<std::uint16_t>({0x3c00, 0xc000})},
          {"3", 2, packed<std::uint16_t>({0x3f80, 0xc000})},
          {"4", 3, packed<std::int64_t>({-1, 0, 1LL << 62})},
          {"5", 1, packed<std::int32_t>({-2})},
          {"6", 1, packed<std::int16_t>({-3})},
          {"7", 1, packed<std::int8_t>({-4})},
          {"8", 1, packed<std::uint8_t>({255})},
          {"9", 2, packed<std::uint8_t>({1, 0})}};
}

TEST_F(PytorchFile, ReadsEveryTypeAndLayoutFromEveryFileFormat) {
  const std::string pickle = testing::pickled_state(some_tensors());
  const auto storages = some_storages(twelve_floats);
  const std::vector<std::pair<std::string, std::string>> files = {
      {"stored", testing::pytorch_zip(pickle, storages)},
      {"deflated", testing::pytorch_zip(pickle, storages, true)},
      {"wide", testing::pytorch_zip(pickle, storages, false, true)},
      {"older", testing::pytorch_older(testing::pickled_state(some_tensors(), true), storages)}};
  for (const auto& [kind, bytes] : files) {
    SCOPED_TRACE(kind);
    const auto opened = open_tensor_file(file("a.bin", bytes));
    EXPECT_EQ(opened->tensors().size(), 15u);
    EXPECT_EQ(opened->find("transposed")->shape, (Shape{4, 3}));
    EXPECT_EQ(floats(*opened, "matrix"), twelve_floats);
    EXPECT_THAT(floats(*opened, "transposed"), ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
    EXPECT_THAT(floats(*opened, "inner"), ElementsAre(5, 6, 9, 10));
    EXPECT_THAT(floats(*opened, "steps"), ElementsAre(1, 5, 9, 3, 7, 11));
    EXPECT_THAT(floats(*opened, "scalar"), ElementsAre(7));
    EXPECT_TRUE(floats(*opened, "none").empty());
    EXPECT_THAT(floats(*opened, "double"), ElementsAre(0.5f, -3));
    EXPECT_THAT(floats(*opened, "half"), ElementsAre(1, -2));
    EXPECT_THAT(floats(*opened, "brain"), ElementsAre(1, -2));
    EXPECT_THAT(opened->read_integers("long"), ElementsAre(-1, 0, 1LL << 62));
    EXPECT_THAT(opened->read_integers("int"), ElementsAre(-2));
    EXPECT_THAT(opened->read_integers("short"), ElementsAre(-3));
    EXPECT_THAT(opened->read_integers("char"), ElementsAre(-4));
    EXPECT_THAT(opened->read_integers("byte"), ElementsAre(255));
    EXPECT_THAT(opened->read_integers("bool"), ElementsAre(1, 0));
    std::vector<float> one(1);
    EXPECT_THAT(message_of<UserError>([&] { opened->read("int", one); }),
                HasSubstr("elements of type I32, expected floating-point numbers"));
  }
}

TEST_F(PytorchFile, OpensShardsAsOneCheckpoint) {
  file("x-1.bin", testing::pytorch_zip(testing::pickled_state({whole}), {four}));
  file("pytorch_model.bin.index.json", R"({"weight_map":{"w":"x-1.bin"}})");
  EXPECT_THAT(floats(*open_tensor_file(folder_), "w"), ElementsAre(1, 2, 3, 4));
}

/// Protocol 4: frames, memo without indices, globals from the stack, and a parameter that wraps its tensor.
TEST_F(PytorchFile, ReadsProtocol4Instructions) {
  const auto text = [](std::string_view value) {
    return Bytes().text("\x8c").number(static_cast<std::uint8_t>(value.size())).text(value).text("\x94").all();
  };
  const std::string tensor = text("torch._utils") + text("_rebuild_parameter") + "\x93\x94(" +
                             testing::pickled_tensor(whole) + "\x88" + testing::ordered_dict + "tR";
  const std::string body = "}\x94" + text("w") + tensor + "s.";
  const std::string pickle = Bytes().text("\x80\x04\x95").number<std::uint64_t>(body.size()).text(body).all();
  EXPECT_THAT(floats(*open_pytorch(file("a", testing::pytorch_zip(pickle, {four}))), "w"), ElementsAre(1, 2, 3, 4));
}

TEST_F(PytorchFile, RejectsGlobalsAndCallsNothing) {
  const std::string witness = path("witness");
  const std::string call = "cposix\nsystem\n(" + testing::pickled_text("touch " + witness) + "tR";
  EXPECT_THAT(pickle_failure(testing::pickled_dict(testing::pickled_text("w") + call)),
              HasSubstr("references posix.system"));
  EXPECT_FALSE(std::filesystem::exists(witness));
  for (const char* name : {"os\nsystem", "builtins\neval", "torch\nload", "torch.storage\n_load_from_bytes",
                           "collections\nordereddict", "\n", "torch\nFloatStorage2"}) {
    EXPECT_THAT(pickle_failure("\x80\x02"
                               "c" +
                               std::string(name) + "\n."),
                HasSubstr("references "))
        << name;
  }
  EXPECT_THAT(pickle_failure("\x80\x04\x8c\x02os\x8c\x06system\x93."), HasSubstr("references os.system"));
  EXPECT_THAT(pickle_failure("\x80\x02"
                             "c" +
                             std::string(5000, 'x')),
              HasSubstr("a name has more than 1000 bytes"));
}

TEST_F(PytorchFile, RejectsPicklesThatMisuseTheStack) {
  const std::string proto = "\x80\x02";
  const std::vector<std::pair<std::string, std::string>> pickles = {
      {"", "1 bytes are required"},
      {"}.", "does not start with a protocol"},
      {"\x80\x01}.", "protocol 1, expected 2 to 5"},
      {"\x80\x06}.", "protocol 6"},
      {proto, "1 bytes are required"},
      {proto + ".", "pops an empty stack"},
      {proto + "}", "1 bytes are required"},
      {proto + "}}.", "2 values on its stack"},
      {proto + "}(.", "empty stack"},
      {proto + "K", "1 bytes are required"},
      {proto + "X\xff\xff\xff\xff", "a value has 4294967295 bytes"},
      {proto + "X\xff\xff\xff\x03", "67108863 bytes are required"},
      {proto + "\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "a value has 18446744073709551615 bytes"},
      {proto + "X\x01" + std::string(3, '\0') + "\xff.", "a string is not UTF-8"},
      {proto + "\x8b\xff\xff\xff\xff", "a value has 4294967295 bytes"},
      {proto + "\x95\xff\xff\xff\xff\xff\xff\xff\xff", "a frame extends past the end"},
      {proto + "\x93", "empty stack"},
      {proto + "KK\x93.", "empty stack"},
      {proto + "K\1K\1\x93.", "name is not a string"},
      {proto + "h\x05.", "reads memo 5"},
      {proto + "q\x05.", "empty stack"},
      {proto + "t.", "a mark that is not set"},
      {proto + "(K\1u.", "empty stack"},
      {proto + "}(K\1u.", "a key without a value"},
      {proto + "](K\1K\2u.", "adds items to a list"},
      {proto + "}K\1a.", "adds items to a dict"},
      {proto + "K\1K\1s.", "empty stack"},
      {proto + "\x85.", "empty stack"},
      {proto + "K\1(\x85.", "empty stack"},
      {proto + "K\1)R.", "it calls an integer"},
      {proto + "ctorch\nFloatStorage\n)R.", "it calls a storage"},
      {proto + "ccollections\nOrderedDict\n(K\1tR.", "OrderedDict is called with 1 arguments"},
      {proto + "ccollections\nOrderedDict\nK\1R.", "it calls a name"},
      {proto + "ctorch._utils\n_rebuild_parameter\n(K\1K\1K\1tR.", "argument of _rebuild_parameter is not a tensor"},
      {proto + "ctorch._utils\n_rebuild_parameter\n)R.", "argument of _rebuild_parameter is not a tensor"},
      {proto + "K\1}b.", "sets attributes of an integer"},
      {proto + "Q.", "empty stack"},
      {proto + "\x81.", "instruction 0x81"},
      {proto + "i.", "instruction 0x69"},
      {proto + std::string("\0", 1) + ".", "instruction 0x00"},
      {proto + "N.", "contains None, expected a state dict"},
      {proto + "].", "contains a list, expected a state dict"},
      {proto + "}K\1K\2s.", "one of its keys is an integer"},
      {proto + "}" + testing::pickled_text("epoch") + "K\2s.", "'epoch' is an integer, expected a tensor"},
      {proto + "}" + testing::pickled_text("model") + "}s.", "'model' is a dict, expected a tensor"},
      // A list, a dict and a persistent reference that contain themselves.
      {proto + "]q\1h\1a.", "contains a list"},
      {proto + "}q\1(" + testing::pickled_text("w") + "h\1u.", "'w' is a dict"},
      {proto + "}" + testing::pickled_text("w") + "](h\1Q.", "reads memo 1"},
      {proto + "}" + testing::pickled_text("w") + "ctorch._utils\n_rebuild_tensor_v2\n)Rs.",
       "not built from 6 or 7 arguments"},
      {proto +
           "]q\1h\1aQq\2"
           "0}" +
           testing::pickled_text("w") + "ctorch._utils\n_rebuild_tensor_v2\n(h\2" + testing::pickled_integer(0) +
           testing::pickled_integers({4}) + testing::pickled_integers({1}) + "\x89}tRs.",
       "not a tuple of 5 or 6 items"},
  };
  for (const auto& [pickle, expected] : pickles) EXPECT_THAT(pickle_failure(pickle), HasSubstr(expected));
}

TEST_F(PytorchFile, RejectsOversizedPickles) {
  // Three million one-byte values: in an archive that deflates them to 3 kB, and in a file of their own length.
  const std::string many = "\x80\x02" + std::string(3'000'000, 'N') + ".";
  const std::string small = testing::pytorch_zip(many, {four}, true);
  EXPECT_THAT(failure(small), HasSubstr(fmt::format("more than {} values", 16 * small.size())));
  EXPECT_THAT(pickle_failure(many), HasSubstr("more than 2000000 values"));
  const auto repeated = [](char instruction) { return "\x80\x04N" + std::string(3'000'000, instruction) + "."; };
  EXPECT_THAT(pickle_failure(repeated('2')), HasSubstr("more than 2000000 values")) << "DUP";
  EXPECT_THAT(pickle_failure(repeated('(')), HasSubstr("more than 2000000 marks")) << "MARK";
  EXPECT_THAT(pickle_failure(repeated('\x94')), HasSubstr("more than 2000000 values in its memo")) << "MEMOIZE";
  // Nested lists, each with twice the elements of the previous one: 2^60 elements for a full walk.
  std::string nested = "\x80\x02]q\1";
  for (char i = 1; i < 60; ++i) nested += std::string("](h") + i + "h" + i + "eq" + static_cast<char>(i + 1);
  EXPECT_THAT(pickle_failure(nested + "."), HasSubstr("on its stack"));
}

// In a hash table of as many keys, those of the first pickle would have one bucket, whose end each read searches.
TEST_F(PytorchFile, CollidingMemoKeysAreNotSlower) {
  constexpr std::uint32_t n_keys = 20'000, n_reads = 20'000;
  std::unordered_map<std::uint32_t, int> table;
  for (std::uint32_t i = 0; i < n_keys; ++i) table.emplace(i, 0);
  const auto seconds_with = [&](std::uint32_t stride) {
    Bytes pickle;
    pickle.text("\x80\x02N");
    for (std::uint32_t i = 0; i < n_keys; ++i) pickle.text("r").number(i * stride);
    for (std::uint32_t i = 0; i < n_reads; ++i) pickle.text("j").number(i % 8 * stride).text("0");
    const std::clock_t start = std::clock();
    EXPECT_THAT(pickle_failure(pickle.text(".").all()), HasSubstr("contains None"));
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  EXPECT_LT(seconds_with(static_cast<std::uint32_t>(table.bucket_count())), 3 * seconds_with(1) + 0.5);
}

TEST_F(PytorchFile, RejectsViewsOutsideTheirStorage) {
  const auto with = [&](std::int64_t offset, std::vector<std::int64_t> size, std::vector<std::int64_t> stride) {
    PickledTensor tensor = whole;
    tensor.offset = offset, tensor.size = std::move(size), tensor.stride = std::move(stride);
    return tensor;
  };
  constexpr std::int64_t most = 9223372036854775807;
  EXPECT_THAT(tensor_failure(with(1, {4}, {1})), HasSubstr("does not fit its storage of 4 elements"));
  EXPECT_THAT(tensor_failure(with(0, {5}, {1})), HasSubstr("does not fit"));
  EXPECT_THAT(tensor_failure(with(0, {2}, {4})), HasSubstr("does not fit"));
  EXPECT_THAT(tensor_failure(with(0, {2, 2}, {3, 1})), HasSubstr("does not fit"));
  EXPECT_THAT(tensor_failure(with(0, {1'000'000'000'000}, {0})), HasSubstr("does not fit"));
  EXPECT_THAT(tensor_failure(with(0, {1'000'000'000'000}, {1})), HasSubstr("does not fit"));
  EXPECT_THAT(tensor_failure(with(most, {1}, {1})), HasSubstr("has strides"));
  EXPECT_THAT(tensor_failure(with(0, {3}, {most})), HasSubstr("has strides"));
  EXPECT_THAT(tensor_failure(with(0, {most, most}, {1, 1})), HasSubstr("more than 2^63 elements"));
  EXPECT_THAT(tensor_failure(with(-1, {4}, {1})), HasSubstr("has no offset"));
  EXPECT_THAT(tensor_failure(with(0, {-1}, {1})), HasSubstr("not a non-negative integer"));
  EXPECT_THAT(tensor_failure(with(0, {2}, {-1})), HasSubstr("not a non-negative integer"));
  EXPECT_THAT(tensor_failure(with(0, {4}, {1, 1})), HasSubstr("has no size and stride"));
  EXPECT_THAT(tensor_failure(with(0, {1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1})),
              HasSubstr("more than 6 dimensions"));
}

// A few kilobytes would describe any memory.
TEST_F(PytorchFile, RejectsManyViewsOfOneStorage) {
  constexpr std::int64_t n = 1 << 20;
  const StorageBytes zeros = {"0", n, std::string(n * sizeof(float), '\0')};
  const auto with_views = [&](int count) {
    std::vector<PickledTensor> tensors;
    for (int i = 0; i < count; ++i) tensors.push_back({"w" + std::to_string(i), "FloatStorage", "0", n, 0, {n}, {1}});
    return file("views.bin", testing::pytorch_zip(testing::pickled_state(tensors), {zeros}, true));
  };
  EXPECT_EQ(open_pytorch(with_views(68))->tensors().size(), 68u);  // 4 times, and 2^26 elements
  EXPECT_THAT(message_of<UserError>([&] { open_pytorch(with_views(69)); }),
              HasSubstr("more elements than 4 times those of its storages"));
}

TEST_F(PytorchFile, RejectsStoragesThatContradictTensors) {
  const auto changed = [&](const std::function<void(PickledTensor&)>& change) {
    PickledTensor tensor = whole;
    change(tensor);
    return tensor;
  };
  EXPECT_THAT(tensor_failure(changed([](auto& tensor) { tensor.key = "1"; })), HasSubstr("no entry for storage '1'"));
  EXPECT_THAT(tensor_failure(changed([](auto& tensor) { tensor.key = "../data.pkl"; })),
              HasSubstr("no entry for storage '../data.pkl'"));
  EXPECT_THAT(tensor_failure(changed([](auto& tensor) { tensor.n_elements = 5; })),
              HasSubstr("has 16 bytes, expected 5 elements of F32"));
  EXPECT_THAT(tensor_failure(changed([](auto& tensor) { tensor.n_elements = 1LL << 62; })),
              HasSubstr("more elements than the file can hold"));
  EXPECT_THAT(tensor_failure(changed([](auto& tensor) { tensor.n_elements = -1; })),
              HasSubstr("has no number of elements"));
  EXPECT_THAT(tensor_failure(changed([](auto& tensor) { tensor.storage = "HalfStorage"; })),
              HasSubstr("expected 4 elements of F16"));
  PickledTensor other = changed([](auto& tensor) { tensor.name = "v", tensor.n_elements = 3, tensor.size = {3}; });
  EXPECT_THAT(pickle_failure(testing::pickled_state({whole, other})), HasSubstr("two different descriptions"));
  EXPECT_THAT(pickle_failure(testing::pickled_state({whole, whole})), HasSubstr("tensor 'w' is listed twice"));
  const std::string state = testing::pickled_state({whole});
  EXPECT_THAT(pickle_failure(testing::replaced(state, "tQ", "t")), HasSubstr("not a persistent reference"));
  EXPECT_THAT(pickle_failure(testing::replaced(state, "storage", "stowage")),
              HasSubstr("does not start with 'storage'"));
  EXPECT_THAT(pickle_failure(testing::replaced(state, "FloatStorage", "LoftyStorage")),
              HasSubstr("references torch.LoftyStorage"));
  EXPECT_THAT(
      failure(testing::replaced(testing::pytorch_zip(state, {four}), packed<float>({2, 3}), packed<float>({3, 2}))),
      HasSubstr("differs from the stated one"));
}

TEST_F(PytorchFile, RejectsInvalidArchives) {
  const std::string state = testing::pickled_state({whole});
  const std::string good = testing::pytorch_zip(state, {four});
  ASSERT_THAT(floats(*open_pytorch(file("good", good)), "w"), ElementsAre(1, 2, 3, 4));
  const std::size_t local = 0, central = good.find("PK\1\2"), end = good.find("PK\5\6");
  const std::vector<std::pair<std::string, std::string>> lies = {
      {"", "0 bytes, too short"},
      {"PK\3\4", "4 bytes, too short"},
      {"GIF89a and so on and so on", "neither a zip archive nor a pickle"},
      {good.substr(0, good.size() - 1), "end record is missing"},
      {good.substr(0, end), "end record is missing"},
      {good + "x", "end record is missing"},
      {"PK" + good, "its directory is stated at bytes"},
      {patched<std::uint16_t>(good, end + 4, 1), "multi-part archive"},
      {patched<std::uint16_t>(good, end + 8, 3), "multi-part archive"},
      {patched<std::uint32_t>(good, end + 8, 0xfff0fff0), "cannot list 65520 entries"},
      {patched<std::uint32_t>(good, end + 8, 0x00050005), "4 bytes are required"},
      {patched<std::uint32_t>(good, end + 8, 0x00030003), "bytes after its last entry"},
      {patched<std::uint32_t>(good, end + 12, 1 << 30), "its directory is stated at"},
      {patched<std::uint32_t>(good, end + 16, 1 << 30), "its directory is stated at"},
      {patched<std::uint32_t>(good, end + 16, 0xffffffff), "its directory is stated at"},
      {patched<std::uint32_t>(good, central, 0), "invalid entry at byte"},
      {patched<std::uint16_t>(good, central + 8, 1), "is encrypted"},
      {patched<std::uint16_t>(good, central + 10, 14), "compression method 14"},
      {patched<std::uint16_t>(good, central + 10, 8), "contradicts the directory"},
      {patched<std::uint32_t>(good, central + 16, 7), "differ from the directory"},
      {patched<std::uint32_t>(good, central + 20, 7), "which 7 stored bytes cannot hold"},
      {patched<std::uint32_t>(good, central + 24, 0xfffffff0), "states 4294967280 bytes"},
      {patched<std::uint32_t>(good, central + 24, 0xffffffff), "a zip64 field is missing"},
      {patched<std::uint16_t>(good, central + 28, 0xffff), "bytes are required"},
      {patched<char>(good, central + 46, 'b'), "contradicts the directory"},
      {patched<char>(good, central + 46, '\xff'), "name is not UTF-8"},
      {patched<std::uint32_t>(good, central + 42, 5), "truncated or damaged"},
      {patched<std::uint32_t>(good, central + 42, 1 << 30), "outside its range"},
      {patched<std::uint32_t>(good, local, 0), "neither a zip archive"},
      {patched<std::uint16_t>(good, local + 6, 8), "contradicts the directory"},
      {patched<std::uint32_t>(good, local + 18, 7), "sizes or checksum in the local header"},
      {patched<std::uint16_t>(good, local + 26, 0xffff), "bytes are required"},
      {testing::zip_file({{"a/x", "y"}}), "without an entry data.pkl"},
      {testing::zip_file({{"a/data.pkl", state}, {"b/data.pkl", state}}), "two entries data.pkl"},
      {testing::zip_file({{"a/data.pkl", state}, {"a/data.pkl", state}}), "two entries 'a/data.pkl'"},
      {testing::zip_file({{"a/data.pkl", state}, {"a/byteorder", "big"}}),
       "byte order 'big', expected 'little'; save the model again"},
      {testing::zip_file({{"a/data.pkl", state}}), "no entry for storage '0'"},
  };
  for (const auto& [bytes, expected] : lies) EXPECT_THAT(failure(bytes), HasSubstr(expected));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    const std::string place = file("cut", good.substr(0, bytes));
    EXPECT_THROW(open_pytorch(place), UserError) << bytes;
  }
}

TEST_F(PytorchFile, RejectsOverlappingEntries) {
  // The second entry has the offset and length of the first one; its name would have to be the first one's.
  const std::string good =
      testing::zip_file({{"a/data.pkl", testing::pickled_state({whole})}, {"a/data/0", four.bytes}});
  const std::size_t first = good.find("PK\1\2"), second = good.find("PK\1\2", first + 1);
  EXPECT_THAT(failure(patched<std::uint32_t>(good, second + 42, 0)), HasSubstr("truncated or damaged zip archive"));
  // An entry that contains the next one.
  std::string longer = good;
  for (const std::size_t at : {first + 20, first + 24, std::size_t{18}, std::size_t{22}})
    longer = patched<std::uint32_t>(longer, at, 300);
  EXPECT_THAT(failure(longer), HasSubstr("overlaps the next one"));
}

TEST_F(PytorchFile, RejectsInvalidDeflatedEntries) {
  const std::string state = testing::pickled_state({whole});
  const std::string good = testing::pytorch_zip(state, {four}, true);
  const std::size_t central = good.find("PK\1\2");
  const auto stated = [&](std::uint32_t bytes) { return patched(patched(good, central + 24, bytes), 22, bytes); };
  EXPECT_THAT(failure(stated(10)), HasSubstr("does not inflate to the 10 bytes stated"));
  EXPECT_THAT(failure(stated(static_cast<std::uint32_t>(state.size() + 1))), HasSubstr("does not inflate to"));
  EXPECT_THAT(failure(stated(200'000'000)), HasSubstr("states 200000000 bytes"));
  EXPECT_THAT(failure(patched<char>(good, 30 + 16 + 3, '\x77')), HasSubstr("archive/data.pkl"));
}

TEST_F(PytorchFile, RejectsInvalidZip64Archives) {
  const std::string good = testing::pytorch_zip(testing::pickled_state({whole}), {four}, false, true);
  const std::size_t record = good.find("PK\6\6"), locator = good.find("PK\6\7"), central = good.find("PK\1\2");
  const std::size_t wide_sizes = central + 46 + std::string("archive/data.pkl").size() + 4;
  const std::vector<std::pair<std::string, std::string>> lies = {
      {patched<std::uint64_t>(good, locator + 8, ~0ull), "zip64 record is stated at byte"},
      {patched<std::uint64_t>(good, locator + 8, 0), "no zip64 record at byte 0"},
      {patched<std::uint32_t>(good, locator + 16, 2), "multi-part archive"},
      {patched<std::uint64_t>(good, record + 4, 45), "wrong length"},
      {patched<std::uint64_t>(good, record + 32, 1ull << 60), "multi-part archive"},
      {patched<std::uint64_t>(patched<std::uint64_t>(good, record + 32, 1ull << 60), record + 24, 1ull << 60),
       "cannot list"},
      {patched<std::uint64_t>(good, record + 40, ~0ull), "its directory is stated"},
      {patched<std::uint64_t>(good, record + 48, ~0ull), "its directory is stated"},
      {patched<std::uint64_t>(good, wide_sizes, 1ull << 40), "states 1099511627776 bytes"},
      {patched<std::uint64_t>(good, wide_sizes + 16, ~0ull), "outside its range"},
      {patched<std::uint16_t>(good, wide_sizes - 2, 8), "a zip64 field is too short"},
      {patched<std::uint16_t>(good, wide_sizes - 2, 99), "a zip64 field is missing"},
  };
  for (const auto& [bytes, expected] : lies) EXPECT_THAT(failure(bytes), HasSubstr(expected));
}

TEST_F(PytorchFile, RejectsInvalidLegacyFiles) {
  const std::string state = testing::pickled_state({whole}, true);
  const std::string good = testing::pytorch_older(state, {four});
  ASSERT_THAT(floats(*open_pytorch(file("good", good)), "w"), ElementsAre(1, 2, 3, 4));
  const std::size_t count = good.size() - 24;
  const std::vector<std::pair<std::string, std::string>> lies = {
      {"\x80\x02N." + good, "not one written by torch.save"},
      {testing::replaced(good, "M\xe9\x03.", "M\xe8\x03."), "is not 1001"},
      {testing::replaced(good, "little_endian\x88u", "little_endian\x89u"), "big-endian"},
      {good + "x", "1 bytes follow the last storage"},
      {good.substr(0, good.size() - 1), "16 bytes are required"},
      {patched<std::int64_t>(good, count, 5), "storage '0' has 5 elements, expected 4"},
      {patched<std::int64_t>(good, count, -4), "storage '0' has -4 elements"},
      {testing::pytorch_older(state, {}), "does not list storage '0'"},
      {testing::pytorch_older(state, {four, four}), "lists storage '0' twice, or no tensor uses it"},
      {testing::pytorch_older(state, {{"7", 4, four.bytes}}), "lists storage '7' twice, or no tensor uses it"},
      {testing::pytorch_older(testing::replaced(state, "NtQ", testing::pickled_integers({0, 0, 4}) + "tQ"), {four}),
       "a view of another storage"},
  };
  for (const auto& [bytes, expected] : lies) EXPECT_THAT(failure(bytes), HasSubstr(expected));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    const std::string place = file("cut", good.substr(0, bytes));
    EXPECT_THROW(open_pytorch(place), UserError) << bytes;
  }
}

}  // namespace
}  // namespace furlong
