#include "datasets/tokenizers/token_decoder.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "datasets/tokenizers/piece_model.h"

namespace furlong {
namespace {

void replace_all(std::string& text, std::string_view wanted, std::string_view content) {
  std::size_t at = text.find(wanted), done = 0;
  if (at == std::string::npos) return;
  std::string out;
  for (; at != std::string::npos; at = text.find(wanted, done)) {
    out.append(text, done, at - done).append(content);
    done = at + wanted.size();
  }
  text = out.append(text, done);
}

std::size_t total_bytes(const std::vector<std::string>& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

/// A step that changes each token separately.
class EachToken : public TokenDecoder::Step {
 public:
  std::vector<std::string> apply(std::vector<std::string> tokens, const TextGrowth& /*growth*/) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) change(tokens[i], i == 0);
    return tokens;
  }

 private:
  virtual void change(std::string& token, bool first) const = 0;
};

class ByteLevelStep : public EachToken {
 public:
  bool ignores_neighbors() const override { return true; }

 private:
  void change(std::string& token, bool /*first*/) const override {
    if (auto bytes = bytes_of_token(token)) token = *std::move(bytes);
  }
};

class WordPieceStep : public EachToken {
 public:
  explicit WordPieceStep(const JsonView& json)
      : prefix_(json.text("prefix", "##")), cleanup_(json.boolean("cleanup", true)) {}

 private:
  void change(std::string& token, bool first) const override {
    if (!first) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    if (!cleanup_) return;
    // English typography, as in the reference implementation.
    for (const auto& [wanted, content] :
         std::initializer_list<std::pair<std::string_view, std::string_view>>{{" .", "."},
                                                                              {" ?", "?"},
                                                                              {" !", "!"},
                                                                              {" ,", ","},
                                                                              {" ' ", "'"},
                                                                              {" n't", "n't"},
                                                                              {" 'm", "'m"},
                                                                              {" do not", " don't"},
                                                                              {" 's", "'s"},
                                                                              {" 've", "'ve"},
                                                                              {" 're", "'re"}}) {
      replace_all(token, wanted, content);
    }
  }
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceStep : public EachToken {
 public:
  explicit MetaspaceStep(const JsonView& json)
      : mark_(json.text("replacement", "\u2581")),
        prepended_(json.text("prepend_scheme", json.boolean("add_prefix_space", true) ? "always" : "never") !=
                   "never") {
    if (mark_.empty()) throw UserError("{}: the replacement is empty", json.name());
  }

 private:
  void change(std::string& token, bool first) const override {
    if (first && prepended_ && token.starts_with(mark_)) token.erase(0, mark_.size());
    replace_all(token, mark_, " ");
  }
  std::string mark_;
  bool prepended_;
};

class ReplaceTokenStep : public TokenDecoder::Step {
 public:
  explicit ReplaceTokenStep(const JsonView& json)
      : wanted_(json.at("pattern").at("String").text()), content_(json.at("content").text()) {
    if (wanted_.empty()) throw UserError("{}: the text to replace is empty", json.name());
  }
  std::vector<std::string> apply(std::vector<std::string> tokens, const TextGrowth& growth) const override {
    std::size_t before = 0;  // bytes of the tokens already processed
    for (std::string& token : tokens) {
      std::string out;
      std::size_t done = 0;
      for (std::size_t at = token.find(wanted_); at != std::string::npos; at = token.find(wanted_, done)) {
        out.append(token, done, at - done);
        out += content_;
        growth.check(before + out.size());
        done = at + wanted_.size();
      }
      out.append(token, done);
      before += out.size();
      token = std::move(out);
    }
    return tokens;
  }

 private:
  std::string wanted_, content_;
};

class StripTokenStep : public EachToken {
 public:
  explicit StripTokenStep(const JsonView& json)
      : content_(json.at("content").text()), start_(json.integer("start", 0)), stop_(json.integer("stop", 0)) {
    if (content_.empty()) throw UserError("{}: the text to strip is empty", json.name());
  }

 private:
  void change(std::string& token, bool /*first*/) const override {
    std::string_view left = token;
    for (std::int64_t i = 0; i < start_ && left.starts_with(content_); ++i) left.remove_prefix(content_.size());
    for (std::int64_t i = 0; i < stop_ && left.ends_with(content_); ++i) left.remove_suffix(content_.size());
    token = std::string(left);
  }
  std::string content_;
  std::int64_t start_, stop_;
};

class FuseStep : public TokenDecoder::Step {
  std::vector<std::string> apply(std::vector<std::string> tokens, const TextGrowth& /*growth*/) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    return {std::move(all)};
  }
};

/// Replaces "<0xE4>" by that byte. Invalid UTF-8 is kept, so that decode() restores what was encoded.
class ByteFallbackStep : public EachToken {
  void change(std::string& token, bool /*first*/) const override {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return;
    const auto digit = [](char letter) {
      return letter >= '0' && letter <= '9'   ? letter - '0'
             : letter >= 'A' && letter <= 'F' ? letter - 'A' + 10
             : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10
                                              : -1;
    };
    const int high = digit(token[3]), low = digit(token[4]);
    if (high >= 0 && low >= 0) token.assign(1, static_cast<char>(static_cast<unsigned char>(high * 16 + low)));
  }
};

}  // namespace

TokenDecoder::TokenDecoder(const JsonView& json) : name_(json.name()) {
  if (!json.is_null()) add(json);
}

void TokenDecoder::add(const JsonView& json) {
  check_step_count(steps_.size(), json.name(), "decoders");
  const std::string& type = json.at("type").text();
  if (type == "Sequence") {
    for (const JsonView& item : json.at("decoders").items()) add(item);
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_shared<ByteLevelStep>());
  } else if (type == "WordPiece") {
    steps_.push_back(std::make_shared<WordPieceStep>(json));
  } else if (type == "Metaspace") {
    steps_.push_back(std::make_shared<MetaspaceStep>(json));
  } else if (type == "Replace") {
    steps_.push_back(std::make_shared<ReplaceTokenStep>(json));
  } else if (type == "Strip") {
    steps_.push_back(std::make_shared<StripTokenStep>(json));
  } else if (type == "Fuse") {
    steps_.push_back(std::make_shared<FuseStep>());
  } else if (type == "ByteFallback") {
    steps_.push_back(std::make_shared<ByteFallbackStep>());
  } else {
    throw UserError(
        "{}: the decoder '{}' is not supported; expected ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip or "
        "WordPiece",
        json.name(), type);
  }
}

bool TokenDecoder::decodes_each_token() const {
  return !steps_.empty() &&
         std::all_of(steps_.begin(), steps_.end(), [](const auto& step) { return step->ignores_neighbors(); });
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) {
    for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
  }
  // Each token may get a leading space.
  const TextGrowth growth(name_, total_bytes(tokens) + tokens.size());
  for (const auto& step : steps_) {
    tokens = step->apply(std::move(tokens), growth);
    growth.check(total_bytes(tokens));
  }
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

}  // namespace furlong
