#pragma once
// Small tokenizers, written in the file formats of published models.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace furlong::testing {

inline constexpr const char* amino_acids = "LAGVSERTIDPKQNFYMHWC";

inline std::string write_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

/// Writes a model's directory with one token per letter: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, and `letters`
/// from 5 on.
inline std::string letters_tokenizer(const std::filesystem::path& folder, const std::string& letters = amino_acids) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const char letter : letters) vocabulary += std::string(1, letter) + "\n";
  write_file(folder / "vocab.txt", vocabulary);
  return folder.string();
}

/// Returns the character that stands for a byte in byte-level BPE (Radford et al. 2019), in UTF-8.
inline std::string byte_character(int byte) {
  const auto plain = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !plain(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

/// Writes a byte-level BPE tokenizer with the splitting of GPT-2. Ids 0 to 255 are the bytes; from 256 on the merges
/// "th", "the", " t", " the", "in"; then <|endoftext|>, 261.
inline std::string bpe_tokenizer(const std::filesystem::path& folder) {
  nlohmann::json vocabulary, merges = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(byte)] = byte;
  const std::string space = byte_character(' ');
  const std::vector<std::array<std::string, 2>> pairs{
      {"t", "h"}, {"th", "e"}, {space, "t"}, {space, "the"}, {"i", "n"}};
  for (const auto& [left, right] : pairs) {
    vocabulary[left + right] = vocabulary.size();
    merges.push_back(left + " " + right);
  }
  const nlohmann::json level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json end{{"id", 261},       {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
                           {"rstrip", false}, {"normalized", false},        {"special", true}};
  const nlohmann::json tokenizer{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {end}},
      {"normalizer", nullptr},
      {"pre_tokenizer", level},
      {"post_processor", nullptr},
      {"decoder", level},
      {"model",
       {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"vocab", vocabulary}, {"merges", merges}}}};
  write_file(folder / "tokenizer.json", tokenizer.dump());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"})");
  return folder.string();
}

/// Writes a BPE tokenizer as Llama 2's: a text gets a leading space, spaces are written as "▁", unknown characters
/// become their bytes, and the decoder removes the first space. Ids: <unk> 0, <s> 1, </s> 2, bytes from 3 on, then
/// letters and merges.
inline std::string llama_tokenizer(const std::filesystem::path& folder) {
  nlohmann::json vocabulary{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}, merges = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  for (const char* letter : {"\u2581", "t", "h", "e", "i", "n", "\n"}) vocabulary[letter] = vocabulary.size();
  for (const auto& [left, right] : std::vector<std::array<std::string, 2>>{
           {"t", "h"}, {"th", "e"}, {"\u2581", "the"}, {"i", "n"}, {"\u2581", "in"}}) {
    vocabulary[left + right] = vocabulary.size();
    merges.push_back(left + " " + right);
  }
  const auto replace = [](const char* wanted, const char* content) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", wanted}}}, {"content", content}};
  };
  const nlohmann::json tokenizer{
      {"added_tokens", nlohmann::json::array()},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace(" ", "\u2581")}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {replace("\u2581", " "),
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"}, {"unk_token", "<unk>"}, {"byte_fallback", true}, {"vocab", vocabulary}, {"merges", merges}}}};
  write_file(folder / "tokenizer.json", tokenizer.dump());
  return folder.string();
}

/// Writes a WordPiece tokenizer of words w0, w1, ...: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, word i is 5 + i,
/// and ##x is last. Text is not lower-cased.
inline std::string word_tokenizer(const std::filesystem::path& folder, int n_words) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 0; i < n_words; ++i) vocabulary += fmt::format("w{}\n", i);
  vocabulary += "##x\n";
  write_file(folder / "vocab.txt", vocabulary);
  write_file(folder / "tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false})");
  return folder.string();
}

}  // namespace furlong::testing
