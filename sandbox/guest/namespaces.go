package guest

import (
	"os"
	"strconv"
	"strings"
)

// HostNamespaces returns the inode numbers of the calling process's namespaces,
// of the kinds that every container must have to itself, for [Expectation].
func HostNamespaces() map[string]uint64 {
	out := map[string]uint64{}
	for _, kind := range []string{"ipc", "mnt", "net", "pid", "uts"} {
		link, err := os.Readlink("/proc/self/ns/" + kind) // "pid:[4026531836]"
		if err != nil {
			continue
		}
		_, number, _ := strings.Cut(link, "[")
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); err == nil {
			out[kind] = n
		}
	}
	return out
}
