#include "formats/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

constexpr std::uint64_t max_pickle_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t max_values = 2'000'000, max_values_per_byte = 16;

/// The supported instructions, named as in Python's pickletools.
enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  binfloat = 'G',
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  none = 'N',
  binpersid = 'Q',
  reduce = 'R',
  binstring = 'T',
  short_binstring = 'U',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  binbytes = 'B',
  short_binbytes = 'C',
  empty_dict = '}',
  appends = 'e',
  binget = 'h',
  long_binget = 'j',
  empty_list = ']',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  empty_tuple = ')',
  setitems = 'u',
  proto = 0x80,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes8 = 0x8e,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
};

struct KnownGlobal {
  std::string_view module, name;
  PickleGlobal global;
  std::string_view element_type = "";
};

constexpr std::array known_globals = {
    KnownGlobal{"collections", "OrderedDict", PickleGlobal::ordered_dict},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v2", PickleGlobal::rebuild_tensor},
    KnownGlobal{"torch._utils", "_rebuild_parameter", PickleGlobal::rebuild_parameter},
    KnownGlobal{"torch", "DoubleStorage", PickleGlobal::storage, "F64"},
    KnownGlobal{"torch", "FloatStorage", PickleGlobal::storage, "F32"},
    KnownGlobal{"torch", "HalfStorage", PickleGlobal::storage, "F16"},
    KnownGlobal{"torch", "BFloat16Storage", PickleGlobal::storage, "BF16"},
    KnownGlobal{"torch", "LongStorage", PickleGlobal::storage, "I64"},
    KnownGlobal{"torch", "IntStorage", PickleGlobal::storage, "I32"},
    KnownGlobal{"torch", "ShortStorage", PickleGlobal::storage, "I16"},
    KnownGlobal{"torch", "CharStorage", PickleGlobal::storage, "I8"},
    KnownGlobal{"torch", "ByteStorage", PickleGlobal::storage, "U8"},
    KnownGlobal{"torch", "BoolStorage", PickleGlobal::storage, "BOOL"},
};

class Machine {
 public:
  using Kind = PickleValue::Kind;

  Machine(ByteCursor& cursor, std::uint64_t file_bytes)
      : cursor_(cursor),
        begin_(cursor.position()),
        max_values_(std::min(max_values, max_values_per_byte * file_bytes)) {}

  Pickle run() && {
    if (static_cast<Opcode>(cursor_.take<std::uint8_t>()) != Opcode::proto)
      fail("it does not start with a protocol number");
    const int protocol = cursor_.take<std::uint8_t>();
    if (protocol < 2 || protocol > 5) fail("protocol {}, expected 2 to 5", protocol);
    for (;;) {
      at_ = cursor_.position();
      if (at_ - begin_ > max_pickle_bytes) fail("it is longer than {} bytes", max_pickle_bytes);
      const auto opcode = static_cast<Opcode>(cursor_.take<std::uint8_t>());
      if (opcode == Opcode::stop) break;
      if (!run_literal(opcode) && !run_container(opcode) && !run_memo(opcode) && !run_call(opcode)) {
        fail("instruction 0x{:02x} does not occur in a state dict", static_cast<int>(opcode));
      }
    }
    pickle_.root = pop();
    if (!stack_.empty() || !marks_.empty())
      fail("it ends with {} values on its stack, expected one", stack_.size() + 1);
    return std::move(pickle_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}: damaged or not a state dict: pickle, byte {}: {}; download or copy it again", cursor_.origin(),
                    at_, fmt::format(format, std::forward<Args>(args)...));
  }

  // The stack. Values below the last mark are inaccessible until the mark is removed.

  PickleValue& value(std::int32_t index) { return pickle_.values[static_cast<std::size_t>(index)]; }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::int32_t top() const {
    if (stack_.size() <= floor()) fail("it pops an empty stack");
    return stack_.back();
  }
  std::int32_t pop() {
    const std::int32_t index = top();
    stack_.pop_back();
    return index;
  }
  std::vector<std::int32_t> pop_to_mark() {
    if (marks_.empty()) fail("it pops to a mark that is not set");
    std::vector<std::int32_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  /// One instruction of one byte can push a value again, so that these count, too.
  void push_index(std::int32_t index) {
    if (n_pushed_++ == max_values_) fail("it has more than {} values", max_values_);
    stack_.push_back(index);
  }
  PickleValue& push(Kind kind) {
    push_index(static_cast<std::int32_t>(pickle_.values.size()));
    PickleValue& added = pickle_.values.emplace_back();
    added.kind = kind;
    return added;
  }

  bool push_integer(std::int64_t number, Kind kind = Kind::integer) {
    push(kind).integer = number;
    return true;
  }
  bool push_text(std::uint64_t bytes) {
    std::string text = cursor_.take_text(bounded(bytes));
    if (!is_utf8(text)) fail("a string is not UTF-8");
    push(Kind::text).text = std::move(text);
    return true;
  }
  bool push_bytes(std::uint64_t bytes) {
    std::string text = cursor_.take_text(bounded(bytes));
    push(Kind::bytes).text = std::move(text);
    return true;
  }
  std::uint64_t bounded(std::uint64_t bytes) const {
    if (bytes > max_pickle_bytes) fail("a value has {} bytes", bytes);
    return bytes;
  }

  /// Pushes an integer of any length: little-endian, two's complement.
  bool push_long(std::uint64_t bytes) {
    std::string text = cursor_.take_text(bounded(bytes));
    if (text.size() > 8) {
      push(Kind::large).text = std::move(text);
      return true;
    }
    std::uint64_t number = !text.empty() && (text.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = text.size(); i-- > 0;) number = number << 8 | static_cast<unsigned char>(text[i]);
    return push_integer(static_cast<std::int64_t>(number));
  }

  double take_big_endian_real() {
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | cursor_.take<std::uint8_t>();
    return std::bit_cast<double>(bits);
  }

  bool run_literal(Opcode opcode) {
    switch (opcode) {
      case Opcode::none:
        push(Kind::none);
        return true;
      case Opcode::newtrue:
        return push_integer(1, Kind::boolean);
      case Opcode::newfalse:
        return push_integer(0, Kind::boolean);
      case Opcode::binint:
        return push_integer(cursor_.take<std::int32_t>());
      case Opcode::binint1:
        return push_integer(cursor_.take<std::uint8_t>());
      case Opcode::binint2:
        return push_integer(cursor_.take<std::uint16_t>());
      case Opcode::long1:
        return push_long(cursor_.take<std::uint8_t>());
      case Opcode::long4:
        return push_long(cursor_.take<std::uint32_t>());
      case Opcode::binfloat:
        push(Kind::real).real = take_big_endian_real();
        return true;
      case Opcode::short_binstring:  // Python 2's str
      case Opcode::short_binunicode:
        return push_text(cursor_.take<std::uint8_t>());
      case Opcode::binstring:
      case Opcode::binunicode:
        return push_text(cursor_.take<std::uint32_t>());
      case Opcode::binunicode8:
        return push_text(cursor_.take<std::uint64_t>());
      case Opcode::short_binbytes:
        return push_bytes(cursor_.take<std::uint8_t>());
      case Opcode::binbytes:
        return push_bytes(cursor_.take<std::uint32_t>());
      case Opcode::binbytes8:
        return push_bytes(cursor_.take<std::uint64_t>());
      default:
        return false;
    }
  }

  bool push_tuple(std::size_t n_items) {
    if (stack_.size() - floor() < n_items) fail("it pops an empty stack");
    std::vector<std::int32_t> items(stack_.end() - static_cast<std::ptrdiff_t>(n_items), stack_.end());
    stack_.resize(stack_.size() - n_items);
    push(Kind::tuple).items = std::move(items);
    return true;
  }
  bool extend(Kind kind, const std::vector<std::int32_t>& items) {
    PickleValue& container = value(top());
    if (container.kind != kind) fail("it adds items to {}", description_of(container.kind));
    if (kind == Kind::dictionary && items.size() % 2 != 0) fail("a key without a value");
    container.items.insert(container.items.end(), items.begin(), items.end());
    return true;
  }

  bool run_container(Opcode opcode) {
    switch (opcode) {
      case Opcode::mark:
        if (marks_.size() == max_values_) fail("it has more than {} marks", max_values_);
        marks_.push_back(stack_.size());
        return true;
      case Opcode::pop:
        pop();
        return true;
      case Opcode::pop_mark:
        pop_to_mark();
        return true;
      case Opcode::dup:
        push_index(top());
        return true;
      case Opcode::empty_list:
        push(Kind::list);
        return true;
      case Opcode::empty_dict:
        push(Kind::dictionary);
        return true;
      case Opcode::empty_tuple:
        return push_tuple(0);
      case Opcode::tuple1:
        return push_tuple(1);
      case Opcode::tuple2:
        return push_tuple(2);
      case Opcode::tuple3:
        return push_tuple(3);
      case Opcode::tuple: {
        std::vector<std::int32_t> items = pop_to_mark();
        push(Kind::tuple).items = std::move(items);
        return true;
      }
      case Opcode::append:
        return extend(Kind::list, {pop()});
      case Opcode::appends:
        return extend(Kind::list, pop_to_mark());
      case Opcode::setitem: {
        const std::int32_t item = pop(), key = pop();
        return extend(Kind::dictionary, {key, item});
      }
      case Opcode::setitems:
        return extend(Kind::dictionary, pop_to_mark());
      default:
        return false;
    }
  }

  bool put(std::uint32_t index) {
    memo_[index] = top();
    if (memo_.size() > max_values_) fail("it has more than {} values in its memo", max_values_);
    return true;
  }
  bool get(std::uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("it reads memo {}, which is not set", index);
    push_index(found->second);
    return true;
  }

  bool run_memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::binput:
        return put(cursor_.take<std::uint8_t>());
      case Opcode::long_binput:
        return put(cursor_.take<std::uint32_t>());
      case Opcode::memoize:
        return put(static_cast<std::uint32_t>(memo_.size()));
      case Opcode::binget:
        return get(cursor_.take<std::uint8_t>());
      case Opcode::long_binget:
        return get(cursor_.take<std::uint32_t>());
      case Opcode::frame:
        if (cursor_.take<std::uint64_t>() > cursor_.remaining()) fail("a frame extends past the end");
        return true;
      default:
        return false;
    }
  }

  std::string take_line() {
    std::string line;
    for (char next = cursor_.take<char>(); next != '\n'; next = cursor_.take<char>()) {
      if (line.size() == 1000) fail("a name has more than 1000 bytes");
      line += next;
    }
    return line;
  }

  bool push_global(std::string_view module, std::string_view name) {
    const auto known = std::find_if(known_globals.begin(), known_globals.end(), [&](const KnownGlobal& global) {
      return global.module == module && global.name == name;
    });
    if (known == known_globals.end()) {
      throw UserError(
          "{}: references {}.{}, which state dicts do not use, so nothing was executed; save only model.state_dict(), "
          "as safetensors",
          cursor_.origin(), printable(module), printable(name));
    }
    PickleValue& added = push(Kind::global);
    added.global = known->global;
    added.text = known->element_type;
    return true;
  }

  bool reduce() {
    const std::int32_t arguments = pop(), callable = pop();
    if (value(callable).kind != Kind::global || value(arguments).kind != Kind::tuple)
      fail("it calls {}", description_of(value(callable).kind));
    const std::size_t n_arguments = value(arguments).items.size();
    switch (value(callable).global) {
      case PickleGlobal::ordered_dict:
        if (n_arguments != 0) fail("OrderedDict is called with {} arguments, expected none", n_arguments);
        push(Kind::dictionary);
        return true;
      case PickleGlobal::rebuild_tensor:
        push(Kind::tensor).items = {arguments};
        return true;
      case PickleGlobal::rebuild_parameter: {
        const std::int32_t tensor = n_arguments == 3 ? value(arguments).items[0] : -1;
        if (tensor < 0 || value(tensor).kind != Kind::tensor)
          fail("the argument of _rebuild_parameter is not a tensor");
        push_index(tensor);
        return true;
      }
      case PickleGlobal::storage:
        break;
    }
    fail("it calls a storage");
  }

  bool run_call(Opcode opcode) {
    switch (opcode) {
      case Opcode::global: {
        const std::string module = take_line();
        return push_global(module, take_line());
      }
      case Opcode::stack_global: {
        const std::int32_t name = pop(), module = pop();
        if (value(name).kind != Kind::text || value(module).kind != Kind::text) fail("a global's name is not a string");
        // Copies, because push_global() adds a value and may move the others.
        const std::string module_text = value(module).text, name_text = value(name).text;
        return push_global(module_text, name_text);
      }
      case Opcode::reduce:
        return reduce();
      case Opcode::binpersid: {
        const std::int32_t which = pop();
        push(Kind::persistent).items = {which};
        return true;
      }
      case Opcode::build:
        // Attributes of a dictionary (torch stores a state dict's _metadata there) do not affect its tensors.
        pop();
        if (value(top()).kind != Kind::dictionary) fail("it sets attributes of {}", description_of(value(top()).kind));
        return true;
      default:
        return false;
    }
  }

  ByteCursor& cursor_;
  std::uint64_t begin_;
  std::uint64_t max_values_, n_pushed_ = 0;
  std::uint64_t at_ = 0;  ///< offset of the current instruction
  Pickle pickle_;
  std::vector<std::int32_t> stack_;
  std::vector<std::size_t> marks_;              ///< stack heights
  std::map<std::uint32_t, std::int32_t> memo_;  // not a hash table: a hostile file could choose colliding keys
};

}  // namespace

std::string_view description_of(PickleValue::Kind kind) {
  constexpr std::array descriptions = {"None",   "a boolean", "an integer", "a large integer", "a real number",
                                       "text",   "bytes",     "a list",     "a tuple",         "a dict",
                                       "a name", "a storage", "a tensor"};
  static_assert(descriptions.size() == static_cast<std::size_t>(PickleValue::Kind::tensor) + 1);
  return descriptions[static_cast<std::size_t>(kind)];
}

Pickle read_pickle(ByteCursor& cursor, std::uint64_t file_bytes) { return Machine(cursor, file_bytes).run(); }

}  // namespace furlong::foreign
