#include "saved_forward.h"

#include <mutex>
#include <unordered_map>

namespace plait::python {
namespace {

class SavedForwards {
 public:
  void add(SavedForward& saved) {
    std::lock_guard lock(mutex_);
    saved.id = ++last_id_;
    by_id_[saved.id] = &saved;
  }
  void remove(int64_t id) {
    std::lock_guard lock(mutex_);
    by_id_.erase(id);
  }
  SavedForward* find(int64_t id) {
    std::lock_guard lock(mutex_);
    auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  int64_t last_id_ = 0;
  std::unordered_map<int64_t, SavedForward*> by_id_;
};
SavedForwards& saved_forwards() {
  static auto* instance = new SavedForwards();  // never destroyed: tensors may outlive the module
  return *instance;
}

}  // namespace

Handle handle_of(std::unique_ptr<SavedForward> saved) {
  saved_forwards().add(*saved);
  int64_t* id = &saved->id;
  nanobind::capsule owner(saved.release(), [](void* pointer) noexcept {
    auto* forward = static_cast<SavedForward*>(pointer);
    saved_forwards().remove(forward->id);
    delete forward;
  });
  return Handle(id, {1}, owner);
}

SavedForward* find_forward(int64_t id) { return saved_forwards().find(id); }

}  // namespace plait::python
