// Package privateengine runs a Docker engine for a test, which may stop, kill
// and restart it without touching the machine's engine. [NewRemapped] runs one
// with userns-remap.
//
// It has its own containerd, directories and network namespace: an engine
// without a bridge removes docker0 if it finds one (moby issue 26989). A change
// of the host's links, addresses, routes, packet filter or forwarding fails the
// test.
package privateengine
