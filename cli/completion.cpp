// furlong completion: completion of command lines in bash and zsh, from the definitions of the commands.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/run_table.h"
#include "cli/text_output.h"
#include "framework/config/table.h"
#include "trainers/settings/settings.h"

namespace furlong::command_line {
namespace {

/// The lines of the two `case` statements of the script, and all command paths: " bench attention".
struct Cases {
  std::vector<std::string> paths;
  std::vector<std::string> groups{""};  ///< paths of commands that only have subcommands
  std::string words;                    ///< what can follow a command
  std::string values;                   ///< what can follow an option
};

std::string in_quotes(const std::vector<std::string>& words) { return "'" + config::join(words, " ") + "'"; }

void add_keys(const nlohmann::ordered_json& schema, const std::string& path, std::vector<std::string>& keys) {
  if (!schema.contains("properties")) {
    keys.push_back(path + "=");
    return;
  }
  for (const auto& [name, member] : schema["properties"].items())
    add_keys(member, path.empty() ? name : path + "." + name, keys);
}

/// Every key of the configuration, followed by "=".
std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  add_keys(json_schema(), "", keys);
  return keys;
}

void collect(const Command& command, const std::string& path, Cases& cases) {
  std::vector<std::string> words, flags;
  for (const Command& subcommand : command.subcommands()) {
    words.push_back(subcommand.name());
    const std::string inner = path + " " + subcommand.name();
    cases.paths.push_back(inner);
    collect(subcommand, inner, cases);
  }
  if (!words.empty()) cases.groups.push_back(path);
  for (const Option& option : command.options()) {
    const std::vector<std::string> names = option.names();
    flags.insert(flags.end(), names.begin(), names.end());
    if (names.empty()) {  // a positional argument
      const std::vector<std::string> choices = option.choices();
      words.insert(words.end(), choices.begin(), choices.end());
    }
    if (names.empty() || !option.takes_value()) continue;
    std::string patterns;
    for (const std::string& name : names) patterns += fmt::format("{}'{} {}'", patterns.empty() ? "" : "|", path, name);
    const bool names_a_column = path == " runs" && option.name() == "--sort";
    std::vector<std::string> choices = names_a_column ? run_columns() : option.choices();
    const bool any_path = std::erase(choices, "PATH") > 0;  // such as auto|never|PATH
    std::string action = option.name() == "--set" ? "keys" : choices.empty() ? "files" : "words " + in_quotes(choices);
    if (any_path) action += "; files";
    cases.values += fmt::format("    {}) {} ;;\n", patterns, action);
  }
  cases.words += fmt::format("    '{}') words {}; flags {} ;;\n", path, in_quotes(words), in_quotes(flags));
}

constexpr const char* script = R"(# Completion of furlong in bash and zsh: source <(furlong completion bash)
_furlong() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path='' i
  words() { COMPREPLY+=($(compgen -W "$1" -- "$word")); }
  flags() { [[ $word != -* ]] || words "$1"; }
  files() { compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$word")); }
  keys() { compopt -o nospace 2>/dev/null; words @KEYS@; }
  COMPREPLY=()
  for (( i = 1; i < COMP_CWORD; ++i )); do
    case "$path ${COMP_WORDS[i]}" in
      @PATHS@) path="$path ${COMP_WORDS[i]}" ;;
    esac
  done
  case "$path $previous" in
@VALUES@    *) case "$path" in
         @GROUPS@) ;;
         *) [[ $word == -* ]] || files ;;
       esac
       case "$path" in
@WORDS@       esac ;;
  esac
}
complete -F _furlong furlong
)";

std::string filled(std::string text, const std::string& mark, const std::string& content) {
  return text.replace(text.find(mark), mark.size(), content);
}

void print(const Command& program, const std::string& shell) {
  Cases cases;
  collect(program, "", cases);
  const auto patterns = [](const std::vector<std::string>& paths) {
    std::vector<std::string> quoted;
    for (const std::string& path : paths) quoted.push_back("'" + path + "'");
    return config::join(quoted, "|");
  };
  std::string text = filled(script, "@KEYS@", in_quotes(config_keys()));
  text = filled(text, "@PATHS@", patterns(cases.paths));
  text = filled(text, "@GROUPS@", patterns(cases.groups));
  text = filled(text, "@VALUES@", cases.values);
  text = filled(text, "@WORDS@", cases.words);
  if (shell == "zsh") text = "autoload -Uz bashcompinit && bashcompinit\n" + text;
  fmt::print("{}", text);
}

}  // namespace

void add_completion(Command program, int& /*status*/) {
  const Command command = program.add_subcommand("completion", "Print the shell completion script");
  const auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "Shell").required().one_of({"bash", "zsh"}).value_name("bash|zsh");
  command.footer("Completes subcommands, options, their values, files, and the config keys of --set.");
  command.examples({
      "furlong completion bash > ~/.local/share/bash-completion/completions/furlong",
      "echo 'source <(furlong completion zsh)' >> ~/.zshrc",
  });
  command.action([program, shell] { print(program, *shell); });
}

}  // namespace furlong::command_line
