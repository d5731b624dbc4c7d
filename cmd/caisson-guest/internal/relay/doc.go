// Package relay listens on the container's loopback for programs and moves
// their connections and name lookups over the guest's connection to the host,
// which decides about them. It interprets nothing of what flows but names.
//
// Sockets are moved as package output moves pipes: by raw connections of the
// runtime's poller, in slots, so that no further thread is needed.
package relay
