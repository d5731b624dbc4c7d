// Command caisson-guest is PID 1 of every container that Caisson makes. It
// starts and ends commands and changes the workspace for the host, over its
// standard input and output (package sandbox/guest/wire). Only Caisson starts
// it. It is static and small, runs as another user than commands, can't be
// traced or signalled by them, and needs no new thread once they run. When its
// standard input ends, it exits, and the container with it.
package main

import (
	"fmt"
	"os"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/boot"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/enter"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/probe"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// version is stamped by the linker (-X main.version).
var version = "devel"

func main() { os.Exit(runMode(os.Args[1:])) }

func runMode(args []string) int {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	switch word {
	case launch.ShimWord:
		return launch.Shim(args[1:])
	case probe.Word:
		return probe.Run()
	case wire.ReachWord:
		return probe.Reach(args[1:])
	case enter.Word:
		return enter.Run(args[1:])
	case probe.IdleWord:
		return probe.Idle()
	case "version":
		fmt.Println("caisson-guest", version)
		return 0
	}
	executable, err := os.Executable()
	if err == nil {
		err = boot.Run(boot.Options{Version: version, Executable: executable})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "caisson-guest:", err)
		return 1
	}
	return 0
}
