// `foreload drive`: plays an engine against a sidecar and compares demand-only loading with prefetching. What it prints
// and when it fails: docs/drive.md.
#pragma once

namespace foreload::drive {

// argv[0] is the name shown in messages. 0: ran, every byte right. 1: wrong bytes or the run failed. 2: wrong use.
int DriveMain(int argc, char** argv);

}  // namespace foreload::drive
