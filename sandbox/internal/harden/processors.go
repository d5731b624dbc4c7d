package harden

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Files of the kernel by which programs count processors without asking for
// their own affinity (glibc's get_nprocs reads the first; os.cpu_count of Python
// asks that).
const (
	OnlinePath  = "/sys/devices/system/cpu/online"
	CPUInfoPath = "/proc/cpuinfo"
)

// Processors is what those files say in a container that is limited to fewer
// processors than the machine has. The zero value says that nothing is to be
// put over them.
type Processors struct{ Online, CPUInfo string }

// NewProcessors gives the files' content for a limit, from those of this
// machine.
func NewProcessors(milliCPUs int64) Processors {
	online, err := os.ReadFile(OnlinePath)
	if err != nil {
		return Processors{}
	}
	info, _ := os.ReadFile(CPUInfoPath)
	return limitProcessors(milliCPUs, string(online), string(info))
}

// limitProcessors is NewProcessors without the system.
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

// countProcessors counts a list like "0-3,8"; 0 where it is none.
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
