// Package mcp is a client of servers that speak the Model Context Protocol. A [Set]
// starts the servers of one session, registers what they offer as tools, and keeps
// them running until it is closed.
//
// A server is not trusted. Every line, message, definition and result is bounded
// before it is parsed; what breaks a bound or the protocol stops that server and
// fails its calls, and touches no other server.
//
// The package starts no process and opens no connection by itself: [Options] holds
// the functions that do, in the session's sandbox and under its policy.
package mcp
