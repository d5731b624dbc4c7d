package harden

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Kernel files by which programs count processors without asking for their
// affinity. glibc's get_nprocs reads the first one, and Python's os.cpu_count
// calls it.
const (
	OnlinePath  = "/sys/devices/system/cpu/online"
	CPUInfoPath = "/proc/cpuinfo"
)

// Processors is the content of these files in a container that is limited to
// fewer processors than the machine has. An empty field leaves the file
// unchanged.
type Processors struct{ Online, CPUInfo string }

// NewProcessors returns the files' content for a limit, made from this
// machine's files. It returns the zero value if the limit is not below the
// machine's number of processors.
func NewProcessors(milliCPUs int64) Processors {
	online, err := os.ReadFile(OnlinePath)
	if err != nil {
		return Processors{}
	}
	info, _ := os.ReadFile(CPUInfoPath)
	return limitProcessors(milliCPUs, string(online), string(info))
}

func limitProcessors(milliCPUs int64, online, info string) Processors {
	n := int((milliCPUs + 999) / 1000)
	if n <= 0 || n >= countProcessors(online) {
		return Processors{}
	}
	p := Processors{Online: "0\n"}
	if n > 1 {
		p.Online = fmt.Sprintf("0-%d\n", n-1)
	}
	if blocks := strings.SplitAfter(info, "\n\n"); len(blocks) > n {
		p.CPUInfo = strings.Join(blocks[:n], "")
	}
	return p
}

// countProcessors counts the processors in a list like "0-3,8", or returns 0 if
// it is invalid.
func countProcessors(list string) (n int) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		from, err1 := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || to < from {
			return 0
		}
		n += to - from + 1
	}
	return n
}
