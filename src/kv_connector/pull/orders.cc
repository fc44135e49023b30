#include "kv_connector/pull/orders.h"

namespace dormouse::pull {

bool Orders::empty() const {
  return leases.empty() && pulls.empty() && cancels.empty() && releases.empty() &&
         heartbeats.empty();
}

std::string encode_orders(const Orders& orders) {
  return orders.empty() ? std::string() : encode_fields(orders);
}

Result<Orders> decode_orders(std::string_view bytes) {
  if (bytes.empty())
    return Orders{};
  return decode_fields<Orders>(bytes, "orders");
}

}  // namespace dormouse::pull
