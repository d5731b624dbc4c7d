// Command caisson runs an agent's tool calls where they can do no harm: the
// agent loop and what only reads run here, what writes or executes runs in one
// container a session.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is stamped by the build (-X main.version).
var version string

func main() {
	// A closed standard output must end the run in order, not kill it.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), standard(signals, os.Exit)))
}
