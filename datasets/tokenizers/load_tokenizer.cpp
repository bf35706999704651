// Finds the tokenizer among a model's files and reads it.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/gguf_tokenizer.h"
#include "datasets/tokenizers/hugging_face_json.h"
#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"
#include "formats/gguf.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t max_config_bytes = std::uint64_t{16} << 20;
/// The largest tokenizers in use are below 40 MiB.
std::string read_file(const fs::path& path) { return read_text_file(path, std::uint64_t{256} << 20); }

std::vector<std::string> lines_of(const fs::path& path) {
  const std::string text = read_file(path);
  if (unicode::valid_length(text) != text.size())
    throw UserError("{}: not valid UTF-8 at byte {}", path.string(), unicode::valid_length(text));
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

/// Settings from the other files in a tokenizer's directory.
struct SideFiles {
  fs::path directory;
  nlohmann::json config = nlohmann::json::object();
  std::string class_name;  // "GPT2Tokenizer", without "Fast"; empty: unknown
  SpecialNames names;
  std::vector<AddedToken> added;

  JsonView view() const { return JsonView(config, (directory / "tokenizer_config.json").string() + ":"); }
};

void read_added(const JsonView& decoder, SideFiles& side_files) {
  if (!decoder.value().is_object()) throw UserError("{}: expected an object", decoder.name());
  for (const auto& [key, value] : decoder.value().items()) {
    const JsonView item(value, decoder.name() + "." + key);
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
      throw UserError("{}: '{}' is not a token id", decoder.name(), key);
    side_files.added.push_back({item.at("content").text(), std::stoi(key), item.boolean("special", false),
                                item.boolean("normalized", false), item.boolean("single_word", false),
                                item.boolean("lstrip", false), item.boolean("rstrip", false)});
  }
}

/// Fast tokenizers give the same ids.
void drop_fast(std::string& class_name) {
  if (class_name.ends_with("Fast")) class_name.resize(class_name.size() - 4);
}

using ClassesByFamily = std::map<std::string, std::string, std::less<>>;

/// Completes the class as transformers does if tokenizer_config.json names none: with that of config.json or, for the
/// families of `classes`, that of its model_type.
SideFiles with_class(SideFiles side_files, const ClassesByFamily& classes) {
  const fs::path path = side_files.directory / "config.json";
  if (!side_files.class_name.empty() || !fs::exists(path)) return side_files;
  const std::string content = read_text_file(path, max_config_bytes);
  foreign::check_json_depth(content, path.string());
  const nlohmann::json config = nlohmann::json::parse(content, nullptr, false);  // may be another program's
  const auto text = [&](const char* key) {
    return config.is_object() && config.contains(key) && config[key].is_string() ? config[key].get<std::string>() : "";
  };
  side_files.class_name = text("tokenizer_class");
  if (const auto found = classes.find(text("model_type")); side_files.class_name.empty() && found != classes.end())
    side_files.class_name = found->second;
  drop_fast(side_files.class_name);
  return side_files;
}

SideFiles read_side_files(const fs::path& directory) {
  SideFiles side_files;
  side_files.directory = directory;
  const auto names_from = [&](const JsonView& json) {
    for (const auto& [key, name] : special_names(json)) side_files.names.try_emplace(key, name);
  };
  if (const fs::path path = directory / "tokenizer_config.json"; fs::exists(path)) {
    side_files.config = parse_json(read_file(path), path.string());
    const JsonView view = side_files.view();
    side_files.class_name = view.text("tokenizer_class", "");
    names_from(view);
    if (view.has("added_tokens_decoder")) read_added(view.at("added_tokens_decoder"), side_files);
  }
  drop_fast(side_files.class_name);
  if (const fs::path path = directory / "special_tokens_map.json"; fs::exists(path)) {
    const nlohmann::json map = parse_json(read_file(path), path.string());
    names_from(JsonView(map, path.string() + ":"));
  }
  if (const fs::path path = directory / "added_tokens.json"; fs::exists(path) && side_files.added.empty()) {
    const nlohmann::json map = parse_json(read_file(path), path.string());
    const JsonView view(map, path.string() + ":");
    if (!map.is_object()) throw UserError("{}: expected an object of tokens and ids", path.string());
    for (const auto& [token, id] : map.items())
      side_files.added.push_back({.content = token, .id = JsonView(id, view.name() + ": " + token).token_id()});
  }
  for (AddedToken& token : side_files.added) {
    for (const auto& [key, name] : side_files.names) token.special = token.special || token.content == name;
  }
  return side_files;
}

std::string name_or(const SideFiles& side_files, std::string_view key, std::string_view fallback) {
  const auto found = side_files.names.find(key);
  return found == side_files.names.end() ? std::string(fallback) : found->second;
}

/// Special tokens are matched in text (if requested) even if no file lists them as added.
void add_special(std::vector<AddedToken>& added, const nlohmann::json& vocabulary, const std::string& token) {
  for (const AddedToken& known : added) {
    if (known.content == token) return;
  }
  if (vocabulary.contains(token))
    added.push_back({.content = token, .id = vocabulary[token].get<std::int32_t>(), .special = true});
}

std::shared_ptr<const Tokenizer> from_tokenizer_json(const fs::path& path, const SideFiles& side_files) {
  nlohmann::json document = parse_json(read_file(path), path.string());
  return make_pipeline_tokenizer(std::move(document), side_files.names, nullptr, path.string());
}

std::shared_ptr<const Tokenizer> from_vocab_json(const fs::path& path, const fs::path& merges_path,
                                                 const SideFiles& side_files) {
  static const std::set<std::string_view> plain{"", "GPT2Tokenizer", "CodeGenTokenizer"},
      framed{"RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"};
  BytePairParts parts;
  const bool frames = framed.contains(side_files.class_name);
  if (side_files.class_name == "Qwen2Tokenizer") {
    parts.family = BytePairFamily::qwen2;
  } else if (!frames && !plain.contains(side_files.class_name)) {
    throw UserError(
        "{}: the tokenizer class {} cannot be read from vocab.json and merges.txt; provide a tokenizer.json "
        "(save_pretrained of the fast tokenizer)",
        path.string(), side_files.class_name);
  }
  parts.vocabulary = parse_json(read_file(path), path.string());
  const JsonView vocabulary(parts.vocabulary, path.string() + ":");
  if (!parts.vocabulary.is_object()) throw UserError("{}: expected an object of tokens and ids", path.string());
  for (const auto& [token, id] : parts.vocabulary.items()) JsonView(id, vocabulary.name() + ": " + token).token_id();
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    unicode::append(letter, letter_of_byte(static_cast<unsigned char>(byte)));
    if (!parts.vocabulary.contains(letter))
      throw UserError("{}: not a byte-level vocabulary; it has no token for byte {}", path.string(), byte);
  }
  parts.merges = lines_of(merges_path);
  if (!parts.merges.empty() && parts.merges.front().starts_with("#version")) parts.merges.erase(parts.merges.begin());
  std::erase(parts.merges, "");
  parts.add_prefix_space = side_files.view().boolean("add_prefix_space", false);
  parts.added = side_files.added;
  SpecialNames names = side_files.names;
  if (frames) {
    parts.front = names.try_emplace("cls_token", "<s>").first->second;
    parts.back = names.try_emplace("sep_token", "</s>").first->second;
    for (const char* token : {"<s>", "<pad>", "</s>", "<unk>"}) add_special(parts.added, parts.vocabulary, token);
    add_special(parts.added, parts.vocabulary, "<mask>");
    for (AddedToken& token : parts.added) token.lstrip = token.lstrip || token.content == "<mask>";
  } else if (side_files.view().boolean("add_bos_token", false)) {  // OPT
    parts.front = names.try_emplace("bos_token", "<|endoftext|>").first->second;
  }
  for (const auto& [key, name] : names) add_special(parts.added, parts.vocabulary, name);
  add_special(parts.added, parts.vocabulary, "<|endoftext|>");
  return make_pipeline_tokenizer(byte_pair_json(parts, path.string()), names, nullptr, path.string());
}

bool is_bracketed(std::string_view token) {
  return token.size() > 2 &&
         ((token.starts_with('[') && token.ends_with(']')) || (token.starts_with('<') && token.ends_with('>')));
}

std::shared_ptr<const Tokenizer> from_letters(std::vector<std::string> tokens, LetterParts::Units units,
                                              const fs::path& path, const SideFiles& side_files) {
  LetterParts parts;
  parts.tokens = std::move(tokens);
  parts.units = units;
  parts.joins_unknown = side_files.class_name == "EsmTokenizer";
  const auto id = [&](const char* key, const char* bert, const char* esm) -> std::optional<std::int32_t> {
    for (const std::string& name : {name_or(side_files, key, bert), std::string(esm)}) {
      const auto found = std::find(parts.tokens.begin(), parts.tokens.end(), name);
      if (found != parts.tokens.end()) return static_cast<std::int32_t>(found - parts.tokens.begin());
    }
    return std::nullopt;
  };
  if (const auto front = id("cls_token", "[CLS]", "<cls>")) parts.frame.front.push_back(*front);
  if (const auto back = id("sep_token", "[SEP]", "<eos>")) parts.frame.back.push_back(*back);
  return make_letter_tokenizer(std::move(parts), side_files.names, nullptr, path.string());
}

std::shared_ptr<const Tokenizer> from_vocab_txt(const fs::path& path, const SideFiles& side_files) {
  std::vector<std::string> tokens = lines_of(path);
  if (tokens.empty()) throw UserError("{}: the list of tokens is empty", path.string());
  const auto plain = [](const std::string& token) { return !is_bracketed(token); };
  const bool letters = std::all_of(tokens.begin(), tokens.end(), [&](const std::string& token) {
    return !plain(token) || unicode::count(token) <= 1;
  });
  const JsonView config = side_files.view();
  if (const std::string words = config.text("word_tokenizer_type", "basic"); words != "basic")
    throw UserError("{}: word_tokenizer_type: {} is not supported", config.name(), words);
  if (letters) return from_letters(std::move(tokens), LetterParts::Units::letters, path, side_files);
  const auto has = [&](const char* token) { return std::find(tokens.begin(), tokens.end(), token) != tokens.end(); };
  if (std::none_of(tokens.begin(), tokens.end(),
                   [](const std::string& token) { return token.size() > 2 && token.starts_with("##"); })) {
    if (has("Cl") && has("Br") && has("c") && has("("))
      return from_letters(std::move(tokens), LetterParts::Units::smiles, path, side_files);
    throw UserError(
        "{}: unknown kind of vocabulary: not WordPiece (no token starts with ##), not letters (tokens have several), "
        "not SMILES (no Cl, Br, c and parentheses)",
        path.string());
  }
  static const std::set<std::string_view> classes{
      "", "BertTokenizer", "DistilBertTokenizer", "MobileBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"};
  if (!classes.contains(side_files.class_name)) {
    throw UserError(
        "{}: the tokenizer class {} cannot be read from vocab.txt; provide a tokenizer.json (save_pretrained of the "
        "fast tokenizer)",
        path.string(), side_files.class_name);
  }
  if (!config.boolean("do_basic_tokenize", true))
    throw UserError("{}: do_basic_tokenize: false is not supported", config.name());
  WordPieceParts parts;
  // A vocabulary with capitals was not trained on lower-cased text.
  const bool cased = std::any_of(tokens.begin(), tokens.end(), [&](const std::string& token) {
    return plain(token) && unicode::lowercase(token) != token;
  });
  parts.lowercase = config.boolean("do_lower_case", !cased);
  if (cased && !config.has("do_lower_case"))
    log_warn(
        "{}: has capital letters, and there is no do_lower_case in tokenizer_config.json, so texts keep their case; "
        "transformers lower-cases them by default: add the key to be sure",
        path.string());
  parts.strip_accents = config.boolean("strip_accents", parts.lowercase);
  parts.space_ideographs = config.boolean("tokenize_chinese_chars", true);
  const bool mpnet = side_files.class_name == "MPNetTokenizer";
  parts.unknown = name_or(side_files, "unk_token", "[UNK]");
  parts.front = name_or(side_files, "cls_token", mpnet ? "<s>" : "[CLS]");
  parts.back = name_or(side_files, "sep_token", mpnet ? "</s>" : "[SEP]");
  parts.vocabulary = nlohmann::json::object();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    if (!parts.vocabulary.emplace(tokens[id], id).second)
      throw UserError("{}, line {}: the token '{}' occurs twice", path.string(), id + 1, tokens[id]);
  }
  parts.added = side_files.added;
  for (const std::string& token : {name_or(side_files, "pad_token", "[PAD]"), parts.unknown, parts.front, parts.back,
                                   name_or(side_files, "mask_token", "[MASK]")}) {
    add_special(parts.added, parts.vocabulary, token);
  }
  return make_pipeline_tokenizer(wordpiece_json(parts, path.string()), side_files.names, nullptr, path.string());
}

/// Returns the tokenizer that Furlong exported to a directory, as JSON; null if there is none.
nlohmann::json exported_tokenizer(const fs::path& directory) {
  const fs::path path = directory / exported_vocabulary_file;
  if (!fs::exists(path)) return nullptr;
  const nlohmann::json vocabulary = parse_json(read_file(path), path.string());
  if (!vocabulary.is_object()) return nullptr;
  return vocabulary.value("tokenizer", nlohmann::json());
}

std::shared_ptr<const Tokenizer> from_sentencepiece(const fs::path& path, const SideFiles& side_files) {
  SentencePieceParts parts;
  parts.model = read_file(path);
  // The class of the tokenizer.json that Furlong made of this model. Its names and frame are not the model's own.
  if (side_files.class_name == "PreTrainedTokenizer") {
    const nlohmann::json exported = exported_tokenizer(side_files.directory);
    if (exported.is_object() && exported.value("sentencepiece", nlohmann::json()) == to_base64(parts.model))
      return tokenizer_from_json(exported.dump(), (side_files.directory / exported_vocabulary_file).string());
  }
  // Other classes change the text before the model sees it, or shift the ids.
  static const std::set<std::string_view> plain{"", "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"},
      with_end{"T5Tokenizer"};
  const bool ends = with_end.contains(side_files.class_name);
  if (!ends && !plain.contains(side_files.class_name)) {
    throw UserError(
        "{}: the tokenizer class {} does more than its SentencePiece model describes; provide a tokenizer.json "
        "(save_pretrained of the fast tokenizer)",
        path.string(), side_files.class_name);
  }
  parts.added = side_files.added;
  const auto bare = make_sentencepiece_tokenizer(parts, side_files.names, nullptr, path.string());
  const JsonView config = side_files.view();
  if (config.boolean("add_bos_token", !ends) && bare->special().beginning)
    parts.frame.front.push_back(*bare->special().beginning);
  if (config.boolean("add_eos_token", ends) && bare->special().end) parts.frame.back.push_back(*bare->special().end);
  return make_sentencepiece_tokenizer(std::move(parts), side_files.names, nullptr, path.string());
}

/// Classes of the families whose tokenizers have these kinds of files.
const ClassesByFamily byte_level_classes{{"bart", "BartTokenizer"},      {"deberta", "DebertaTokenizer"},
                                         {"gpt2", "GPT2Tokenizer"},      {"longformer", "LongformerTokenizer"},
                                         {"qwen2", "Qwen2Tokenizer"},    {"qwen2_moe", "Qwen2Tokenizer"},
                                         {"qwen3", "Qwen2Tokenizer"},    {"qwen3_moe", "Qwen2Tokenizer"},
                                         {"roberta", "RobertaTokenizer"}};
const ClassesByFamily word_classes{{"bert", "BertTokenizer"},
                                   {"distilbert", "DistilBertTokenizer"},
                                   {"electra", "ElectraTokenizer"},
                                   {"esm", "EsmTokenizer"},
                                   {"mpnet", "MPNetTokenizer"}};
const ClassesByFamily sentencepiece_classes{{"albert", "AlbertTokenizer"},
                                            {"big_bird", "BigBirdTokenizer"},
                                            {"camembert", "CamembertTokenizer"},
                                            {"deberta-v2", "DebertaV2Tokenizer"},
                                            {"llama", "LlamaTokenizer"},
                                            {"mbart", "MBartTokenizer"},
                                            {"mistral", "LlamaTokenizer"},
                                            {"mt5", "T5Tokenizer"},
                                            {"pegasus", "PegasusTokenizer"},
                                            {"t5", "T5Tokenizer"},
                                            {"umt5", "T5Tokenizer"},
                                            {"xlm-roberta", "XLMRobertaTokenizer"},
                                            {"xlm-roberta-xl", "XLMRobertaTokenizer"},
                                            {"xlnet", "XLNetTokenizer"}};

std::shared_ptr<const Tokenizer> from_file(const fs::path& path) {
  const SideFiles side_files = read_side_files(path.parent_path());
  if (is_gguf(path)) return tokenizer_from_gguf(*open_gguf(path));
  if (path.extension() == ".model") return from_sentencepiece(path, with_class(side_files, sentencepiece_classes));
  if (path.filename() == "merges.txt" || path.filename() == "vocab.json")
    return from_vocab_json(path.parent_path() / "vocab.json",
                           path.filename() == "merges.txt" ? path : path.parent_path() / "merges.txt",
                           with_class(side_files, byte_level_classes));
  if (path.extension() == ".txt") return from_vocab_txt(path, with_class(side_files, word_classes));
  if (path.extension() == ".json") return from_tokenizer_json(path, side_files);
  throw UserError(
      "{}: not a tokenizer file; expected tokenizer.json, vocab.json with merges.txt, vocab.txt, *.model "
      "(SentencePiece) or GGUF",
      path.string());
}

/// Returns the only file with that extension, or nullopt if there is none or more than one.
std::optional<fs::path> only_file(const fs::path& directory, const char* extension) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == extension) found.push_back(entry.path());
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::shared_ptr<const Tokenizer> load(const fs::path& directory_or_file) {
  std::error_code failure;
  if (!fs::exists(directory_or_file, failure))
    throw_missing(directory_or_file, "a tokenizer file or a directory with one");
  if (!fs::is_directory(directory_or_file)) return from_file(directory_or_file);
  const auto has = [&](const char* name) { return fs::exists(directory_or_file / name); };
  if (const nlohmann::json exported = exported_tokenizer(directory_or_file); !exported.is_null())
    return tokenizer_from_json(exported.dump(), (directory_or_file / exported_vocabulary_file).string());
  for (const char* name : {"tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"}) {
    if (has(name) && (std::string_view(name) != "vocab.json" || has("merges.txt")))
      return from_file(directory_or_file / name);
  }
  for (const char* extension : {".model", ".gguf"}) {
    if (const auto path = only_file(directory_or_file, extension)) return from_file(*path);
  }
  throw UserError(
      "{}: no tokenizer found; expected tokenizer.json, vocab.json with merges.txt, vocab.txt, one *.model or one "
      "*.gguf",
      directory_or_file.string());
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const fs::path& directory_or_file) {
  return foreign::with_single_line_errors([&] { return load(directory_or_file); });
}

}  // namespace furlong
