package harden

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Files of the kernel by which programs count processors without asking for
// their own affinity. The function get_nprocs of glibc reads the first one, and
// os.cpu_count of Python calls that function.
const (
	OnlinePath  = "/sys/devices/system/cpu/online"
	CPUInfoPath = "/proc/cpuinfo"
)

// Processors is the content of these files in a container that is limited to
// fewer processors than the machine has. An empty field leaves the file as it
// is.
type Processors struct{ Online, CPUInfo string }

// NewProcessors returns the content of the files for a limit, made from those
// of this machine. It returns the zero value if the limit is not lower than the
// machine's number of processors.
func NewProcessors(milliCPUs int64) Processors {
	online, err := os.ReadFile(OnlinePath)
	if err != nil {
		return Processors{}
	}
	info, _ := os.ReadFile(CPUInfoPath)
	return limitProcessors(milliCPUs, string(online), string(info))
}

// limitProcessors implements [NewProcessors] for given files.
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

// countProcessors counts the processors in a list like "0-3,8". It returns 0 if
// the list is invalid.
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
