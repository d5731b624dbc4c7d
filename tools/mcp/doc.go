// Package mcp is a client of servers that speak the Model Context Protocol. A [Set]
// starts a session's servers, registers what they offer as tools, and keeps them
// running until it is closed.
//
// Servers are not trusted. Every line, message, definition and result is bounded
// before it is parsed. A server that breaks a bound or the protocol is stopped and
// its calls fail, without touching other servers.
//
// The package starts no process and opens no connection by itself. [Options] has
// the functions that do, in the session's sandbox and under its policy.
package mcp
