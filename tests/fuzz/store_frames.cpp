// The bytes of a connection to the job store: a stream of frames that is cut, decoded and executed.
#include "communication/job_store/store_protocol.h"

#include "communication/job_store/store_table.h"
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;
namespace store = furlong::store;

namespace {

/// A frame without its length.
std::string_view body_of(const std::string& frame) { return std::string_view(frame).substr(4); }

/// Checks that a decoded frame is unchanged by encoding and decoding.
template <class Decode, class Encode>
void expect_stable(std::string_view body, const Decode& decode, const Encode& encode) {
  const std::string once = encode(decode(body));
  fuzzing::expect(encode(decode(body_of(once))) == once, "a frame changes when it is encoded and decoded");
}

void take_request(std::string_view body, store::StoreTable& state) {
  store::Request request = store::decode_request(body);
  expect_stable(body, store::decode_request, [](const store::Request& one) { return encode(one, one.value); });
  const int rank = static_cast<int>(request.id % 4);
  state.join(rank);
  store::Answers answers;
  if (request.kind == store::Kind::set || request.kind == store::Kind::add) {
    answers = state.change(std::move(request)).answers;
  } else if (request.kind == store::Kind::get || request.kind == store::Kind::wait ||
             request.kind == store::Kind::check) {
    answers = state.ask(rank, std::move(request));
  } else if (request.kind == store::Kind::goodbye) {
    state.forget_waiting(rank);
  }
  for (const auto& [asked, answer] : answers) {
    const std::string reply = encode_reply(asked.id, answer.status, answer.payload->size()) + *answer.payload;
    fuzzing::expect(store::decode_reply(body_of(reply)).payload == *answer.payload, "a reply cannot be decoded");
  }
}

void take(std::string_view body, store::StoreTable& state) {
  using store::Kind;
  const Kind kind = store::kind_of(body);
  const auto encode = [](const auto& message) { return store::encode(message); };
  if (kind == Kind::challenge) {
    expect_stable(body, store::decode_challenge, encode);
  } else if (kind == Kind::hello) {
    expect_stable(body, store::decode_hello, encode);
  } else if (kind == Kind::welcome) {
    expect_stable(body, store::decode_welcome, encode);
  } else if (kind == Kind::refusal) {
    expect_stable(body, store::decode_refusal, encode);
  } else if (kind == Kind::fault) {
    expect_stable(body, store::decode_fault, encode);
    const std::string message = store::decode_fault(body).message();
    fuzzing::expect(message.find('\n') == std::string::npos, "a fault has several lines");
  } else if (kind == Kind::heartbeat) {
    store::decode_heartbeat(body);
  } else if (kind == Kind::reply) {
    const store::Reply reply = store::decode_reply(body);
    if (reply.status == store::Status::ok)
      fuzzing::succeeds<store::ProtocolError>([&] { store::decode_number(reply.payload); });
  } else {
    take_request(body, state);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  store::StoreTable state(4);
  store::FrameBuffer buffer;
  // The first byte is the size of packets into which the stream is cut.
  const std::size_t packet = size == 0 ? 1 : 1 + data[0];
  fuzzing::succeeds<store::ProtocolError>([&] {
    for (std::size_t at = 1; at < size; at += packet) {
      const auto* begin = reinterpret_cast<const char*>(data) + at;
      buffer.append({begin, std::min(packet, size - at)});
      while (const auto body = buffer.next(store::max_frame_bytes)) take(*body, state);
    }
  });
  for (const auto& [asked, answer] : state.expire(furlong::TimePoint::max()))
    fuzzing::expect(answer.payload->find('\n') == std::string::npos, "a reason has several lines");
  return 0;
}
