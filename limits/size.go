package limits

import "fmt"

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
