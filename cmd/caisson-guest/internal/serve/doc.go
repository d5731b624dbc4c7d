// Package serve is the guest's end of the protocol: it reads frames, keeps the
// open streams, and runs a command, change or read behind each.
//
// The goroutine that reads frames never waits for a command, a file system or a
// consumer. It hands bytes to bounded queues, so it always meets a cancel or a
// ping.
package serve
