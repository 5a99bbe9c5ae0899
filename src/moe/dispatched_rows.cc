#include "moe/dispatched_rows.h"

#include "base/status_macros.h"
#include "ops/dense_rows.h"

namespace plait::moe {

Result<TokenRows> TokenRows::open(const LayerCall& call, int64_t num_tokens) {
  TokenRows rows;
  if (call.group.size() == 1) return rows;
  PLAIT_ASSIGN_OR_RETURN(rows.own, WindowBuffer::open(call.context, call.group, num_tokens * call.config.hidden * size_of(call.config.dtype)));
  return rows;
}

void TokenRows::write(LayerCall& call, const ConstTensorView& rows) const {
  if (own.data() == nullptr) return;
  StageScope scope(call, Stage::permute);
  copy_rows(call.context, rows, TensorView(own.data(), rows.dtype, {rows.shape[0], rows.shape[1]}));
  call.context.recorder().add(Counter::bytes_copied, rows.num_bytes());
}

RowSource DispatchedRows::find(const LayerCall& call, const RoutingPlan& plan, const TokenRows& rows, const ConstTensorView& own) const {
  const int64_t row_bytes = call.config.hidden * size_of(call.config.dtype);
  std::vector<RankRows> ranks;
  if (call.group.size() == 1) ranks.push_back({own.data, own.strides[0] * size_of(own.dtype)});
  for (const RegionView& view : rows.views) ranks.push_back({view.data(), row_bytes});
  return RowSource::of_tokens(plan, ranks, std::span(tokens.as<int32_t>(), static_cast<size_t>(plan.num_recv_rows())));
}

}  // namespace plait::moe
