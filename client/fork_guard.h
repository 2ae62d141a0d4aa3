// Makes a forked child let go of its parent's clients: their sockets are closed in the child, so that the sidecar sees
// the parent's end and not the child's, and every call on them fails. A client in a child is never freed: its threads
// exist in the parent alone.
#pragma once

namespace foreload::client {

class Client;

// After open and before close of a client. Any thread.
void GuardFork(Client* client);
void UnguardFork(Client* client);

}  // namespace foreload::client
