package tools

import "fmt"

// signalNames are the signals of Linux, where commands run.
var signalNames = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}

// SignalText returns "signal 9 (SIGKILL)", or the number alone of a signal without a
// name.
func SignalText(n int) string {
	text := fmt.Sprintf("signal %d", n)
	if name, ok := signalNames[n]; ok {
		text += " (" + name + ")"
	}
	return text
}

// CommandEnd returns how a command ended that nothing of ours ended: "exit code 3", or
// the signal that killed it, "SIGKILL".
func CommandEnd(code, signal int) string {
	name, ok := signalNames[signal]
	switch {
	case ok:
		return name
	case signal != 0:
		return SignalText(signal)
	case code < 0:
		return "no exit code"
	}
	return fmt.Sprintf("exit code %d", code)
}

// CommandEnding returns how a command ended by the metadata that its tool recorded, in
// words: "timed out" rather than the signal that ended it. It is "" where no command
// ran.
func CommandEnding(metadata map[string]any) string {
	number := func(key string) (int, bool) {
		switch n := metadata[key].(type) {
		case float64:
			return int(n), true
		case int:
			return n, true
		}
		return 0, false
	}
	code, ran := number("exit_code")
	signal, killed := number("signal")
	switch {
	case metadata["timed_out"] == true:
		return "timed out"
	case metadata["oom_killed"] == true:
		return "out of memory"
	case metadata["disk_reserve_bytes"] != nil:
		return "disk nearly full"
	case metadata["pids_limit_hit"] == true:
		return "limit of processes"
	case metadata["full"] != nil:
		return "no space left"
	case ran || killed:
		return CommandEnd(code, signal)
	}
	return ""
}
