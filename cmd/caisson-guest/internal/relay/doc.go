// Package relay listens on the container's loopback for programs and moves
// their connections and name lookups over the guest's connection to the host,
// which decides about them. It interprets only name lookups and requests to the
// proxy for the container's own loopback, which it serves itself.
//
// It moves sockets as package output moves pipes, with raw connections of the
// runtime's poller, in slots, so it needs no other thread.
package relay
