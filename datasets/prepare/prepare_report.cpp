#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "datasets/prepare/document_encoder.h"
#include "datasets/prepare/prepare.h"
#include "framework/core/json_output.h"
#include "framework/core/printable.h"

namespace furlong {

namespace {

using Json = nlohmann::ordered_json;

/// Formats 12345678 as 12,345,678.
std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t place = digits.size(); place > 3; place -= 3) digits.insert(place - 3, ",");
  return digits;
}

/// Returns NaN for inputs that contain more than text: columns, headers, other keys.
double tokens_per_byte(const PrepareReport& report) {
  return report.is_plain_text && report.input_bytes > 0
             ? static_cast<double>(report.store.n_tokens) / static_cast<double>(report.input_bytes)
             : std::nan("");
}

/// Returns the counts of the labels, a line each, with a column for each split unless the splits are spans.
std::string table_of_labels(const DatasetSummary& summary) {
  if (summary.labels.empty()) return "";
  constexpr std::size_t max_labels = 20;
  const bool by_split = summary.split_documents != std::array<std::uint64_t, 3>{};
  std::string text = by_split ? fmt::format("  {:>13}{:>13}{:>13}  label\n", "train", "validation", "test")
                              : fmt::format("  {:>13}  label\n", "all splits");
  for (std::size_t i = 0; i < std::min(max_labels, summary.labels.size()); ++i) {
    const LabelSummary& label = summary.labels[i];
    text += "  ";
    if (!by_split) text += fmt::format("{:>13}", grouped(label.count));
    for (const std::uint64_t count : label.split_counts)
      if (by_split) text += fmt::format("{:>13}", grouped(count));
    text += fmt::format("  {}\n", foreign::printable(label.name));
  }
  if (summary.labels.size() > max_labels)
    text += fmt::format("  and {} more labels\n", grouped(summary.labels.size() - max_labels));
  return text;
}

}  // namespace

std::string to_text(const PrepareReport& report) {
  const DatasetSummary& summary = report.store;
  std::string text =
      fmt::format("{}: {} tokens; vocabulary: {} ({} symbols); {} document{}\n", report.output,
                  grouped(summary.n_tokens), report.tokenizer.empty() ? report.vocabulary : report.tokenizer,
                  report.vocabulary_size, grouped(summary.n_documents), summary.n_documents == 1 ? "" : "s");
  for (const Split split : all_splits) {
    const auto index = static_cast<std::size_t>(split);
    text += fmt::format("  {:<11}{:>16} token{}", name_of(split), grouped(summary.split_tokens[index]),
                        summary.split_tokens[index] == 1 ? "" : "s");
    if (summary.split_documents[index] > 0)
      text += fmt::format(" in {} document{}", grouped(summary.split_documents[index]),
                          summary.split_documents[index] == 1 ? "" : "s");
    text += '\n';
  }
  text += table_of_labels(summary);
  for (const NumberSummary& of : summary.numbers)
    text += fmt::format("  {}: mean {:.6g} and standard deviation {:.6g} in train, from {:.6g} to {:.6g}\n",
                        foreign::printable(of.name), of.mean, of.deviation, of.minimum, of.maximum);
  text += fmt::format("  order-0 entropy of train: {:.4f} bits per token\n", summary.train_entropy);
  if (!report.ambiguous.empty()) {
    text += "  ambiguous letters:";
    for (const auto& [symbol, count] : report.ambiguous) text += fmt::format(" {} {}", symbol, grouped(count));
    text += '\n';
  }
  if (!report.tokenizer.empty()) {
    if (const double rate = tokens_per_byte(report); std::isfinite(rate))
      text += fmt::format("  tokens per byte: {:.4f}\n", rate);
    text += fmt::format("  unknown tokens: {}\n", grouped(report.n_unknown));
  } else if (report.n_mapped > 0) {
    text += fmt::format("  unknown letters read as ambiguous ones: {}\n", grouped(report.n_mapped));
  }
  if (report.ignored.characters > 0)
    text += fmt::format("  characters that the tokenizer leaves out: {} in {} documents\n",
                        grouped(report.ignored.characters), grouped(report.ignored.documents));
  if (report.n_cut_documents > 0) {
    text += fmt::format(
        "  {} longer than {} MiB and encoded in pieces, cut at line ends if possible\n",
        report.n_cut_documents == 1 ? "one document was" : grouped(report.n_cut_documents) + " documents were",
        DocumentEncoder::default_piece_bytes >> 20);
  }
  if (summary.n_empty_documents > 0)
    text += fmt::format("  empty documents skipped: {}\n", grouped(summary.n_empty_documents));
  if (report.file_bytes == 0) return text + fmt::format("  generated in {:.2f} s\n", report.seconds);
  text += fmt::format("  read {} bytes", grouped(report.file_bytes));
  if (report.input_bytes != report.file_bytes) text += fmt::format(" ({} uncompressed)", grouped(report.input_bytes));
  return text + fmt::format(" in {:.2f} s\n", report.seconds);
}

std::string to_json(const PrepareReport& report) {
  // Labels are distinct; operator[] would search all labels before it.
  const auto counts = [&](const auto& count_of) {
    Json::object_t object;
    for (const LabelSummary& label : report.store.labels) object.emplace_back(label.name, count_of(label));
    return object;
  };
  Json json;
  json["output"] = report.output;
  json["vocabulary"] = report.vocabulary;
  json["vocabulary_size"] = report.vocabulary_size;
  if (!report.tokenizer.empty()) {
    json["tokenizer"] = report.tokenizer;
    if (const double rate = tokens_per_byte(report); std::isfinite(rate)) json["tokens_per_byte"] = rate;
    json["unknown_tokens"] = report.n_unknown;
    json["characters_left_out"] = report.ignored.characters;
    json["documents_in_pieces"] = report.n_cut_documents;
  }
  json["tokens"] = report.store.n_tokens;
  json["documents"] = report.store.n_documents;
  json["empty_documents"] = report.store.n_empty_documents;
  const auto& documents = report.store.split_documents;
  const bool by_document = std::any_of(documents.begin(), documents.end(), [](auto n) { return n > 0; });
  for (const Split split : all_splits) {
    const auto index = static_cast<std::size_t>(split);
    Json& entry = json["splits"][std::string(name_of(split))];
    entry["tokens"] = report.store.split_tokens[index];
    if (!by_document) continue;
    entry["documents"] = documents[index];
    if (!report.store.labels.empty())
      entry["labels"] = counts([&](const LabelSummary& label) { return label.split_counts[index]; });
  }
  if (!report.store.labels.empty()) json["labels"] = counts([](const LabelSummary& label) { return label.count; });
  for (const NumberSummary& of : report.store.numbers)
    json["targets"][of.name] = {
        {"mean", of.mean}, {"deviation", of.deviation}, {"minimum", of.minimum}, {"maximum", of.maximum}};
  json["train_entropy_bits_per_token"] = report.store.train_entropy;
  json["ambiguous"] = Json::object();
  for (const auto& [symbol, count] : report.ambiguous) json["ambiguous"][symbol] = count;
  json["unknown_mapped"] = report.n_mapped;
  json["file_bytes"] = report.file_bytes;
  json["input_bytes"] = report.input_bytes;
  json["seconds"] = report.seconds;
  return json_text(json);
}

}  // namespace furlong
