// Package relay listens on the container's loopback for programs and moves
// their connections and name lookups over the guest's connection to the host,
// which decides about them. It interprets name lookups, and requests to the proxy for
// the container's own loopback, which it serves itself.
//
// Sockets are moved as package output moves pipes: by raw connections of the
// runtime's poller, in slots, so that no further thread is needed.
package relay
