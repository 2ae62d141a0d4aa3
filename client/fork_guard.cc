#include "client/fork_guard.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "client/client.h"

namespace foreload::client {
namespace {

// Leaked on purpose: a fork may come while static objects are being destroyed.
struct Registry {
  std::mutex mutex;
  std::vector<Client*> clients;
};
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

void BeforeFork() {
  TheRegistry().mutex.lock();
}
void InParent() {
  TheRegistry().mutex.unlock();
}
void InChild() {
  for (Client* client : TheRegistry().clients) client->Disown();
  TheRegistry().clients.clear();
  TheRegistry().mutex.unlock();
}

}  // namespace

void GuardFork(Client* client) {
  static const int kInstalled = ::pthread_atfork(BeforeFork, InParent, InChild);
  (void)kInstalled;
  const std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().clients.push_back(client);
}

void UnguardFork(Client* client) {
  const std::lock_guard lock(TheRegistry().mutex);
  auto& clients = TheRegistry().clients;
  clients.erase(std::remove(clients.begin(), clients.end(), client), clients.end());
}

}  // namespace foreload::client
