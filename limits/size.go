package limits

import (
	"fmt"
	"strings"
)

// FormatSize returns a number of bytes with a unit, such as 1.5 GiB.
func FormatSize(n int64) string {
	unit, value := "B", float64(n)
	for _, u := range []string{"KiB", "MiB", "GiB"} {
		if value < 1<<10 {
			break
		}
		unit, value = u, value/(1<<10)
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// FormatCount returns a number and its noun, such as "1 file" or "2 entries".
func FormatCount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	if strings.HasSuffix(noun, "ch") || strings.HasSuffix(noun, "s") {
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
