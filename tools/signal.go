package tools

import "strconv"

// SignalName returns the name of a signal of Linux, where commands run, such as
// "SIGKILL", or "signal 40" for one without a name.
func SignalName(n int) string {
	names := map[int]string{
		1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
		9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
		24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
	}
	if name, ok := names[n]; ok {
		return name
	}
	return "signal " + strconv.Itoa(n)
}
