#pragma once
// What libsentencepiece (0.1.97) does not check itself in a model.
#include <string>
#include <string_view>

namespace furlong {

/// Checks a serialized sentencepiece.ModelProto. Throws UserError, starting with `origin`, if it is not in protocol
/// buffers' wire format, if the search in a normalization map could leave it, or if a text could match more entries of
/// a map, or more user-defined pieces, than the library can store.
void check_sentencepiece_model(std::string_view model, std::string_view origin);

/// Returns the model without its self tests, which the library would run while it loads, whatever they take.
std::string without_self_tests(std::string_view model, std::string_view origin);

}  // namespace furlong
