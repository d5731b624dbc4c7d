package admission

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ReadMemory returns this machine's memory: MemTotal and MemAvailable of
// /proc/meminfo, see proc(5).
func ReadMemory() (Memory, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("read the machine's memory: %w", err)
	}
	return parseMemory(string(data))
}

func parseMemory(text string) (m Memory, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		target := map[string]*int64{"MemTotal": &m.Total, "MemAvailable": &m.Available}[name]
		if target == nil {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("read the machine's memory: %s: %w", name, err)
		}
		*target = kb << 10
	}
	if m.Total <= 0 || m.Available <= 0 {
		return Memory{}, fmt.Errorf("read the machine's memory: no MemTotal or MemAvailable")
	}
	return m, nil
}
