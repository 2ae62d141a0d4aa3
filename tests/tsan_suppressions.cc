// libzmq is not built with ThreadSanitizer, so its lock-free queues look like races on what passes through them.
// Nothing of ours is shared through it but copies of bytes.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\n"
         "race:libzmq.so\n";
}
