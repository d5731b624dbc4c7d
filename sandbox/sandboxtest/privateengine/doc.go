// Package privateengine runs a Docker engine of a test's own, which the test
// may stop, kill and restart while the machine's engine goes on untouched.
// [NewRemapped] runs one with userns-remap.
//
// It has its own containerd, its own directories, and its own network
// namespace: an engine without a bridge removes docker0 where it finds one
// (moby issue 26989). The host's symlinks, addresses, routes, packet filter and
// forwarding are compared before and after, and a difference fails the test.
package privateengine
