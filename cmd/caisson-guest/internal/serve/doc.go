// Package serve is the guest's end of the protocol: it reads frames, keeps the
// streams that are open, and runs a command or a change behind each.
//
// The goroutine that reads frames never waits for a command, a file system or
// a consumer: it hands bytes to bounded queues and goes on, so that a cancel or
// a ping is always met.
package serve
