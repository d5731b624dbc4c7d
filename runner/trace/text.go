package trace

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// cut keeps the beginning and the end of a long text, and says how much it left
// out. It cuts no character.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	from, to := most*3/4, len(s)-most/4
	for from > 0 && !utf8.RuneStart(s[from]) {
		from--
	}
	for to < len(s) && !utf8.RuneStart(s[to]) {
		to++
	}
	return fmt.Sprintf("%s\n[… %d bytes left out …]\n%s", s[:from], to-from, s[to:])
}

// oneLine is the first line of a text, cut to n characters.
func oneLine(s string, n int) string {
	s, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if short := clip(s, n); short != s {
		return short
	}
	if more {
		s += " …"
	}
	return s
}

// clip cuts a text to n characters.
func clip(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i] + "…"
		}
		n--
	}
	return s
}

func milliseconds(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), int64(1<<42))) * time.Millisecond
}

// elapsed writes a time as people do: 40 ms, 1.4 s, 12 s, 2m5s.
func elapsed(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(d, 0).Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// count writes a number with separators between its thousands.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural writes a number of things.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// dollars writes a decimal cost with what matters of it.
func dollars(usd string) string {
	f, err := strconv.ParseFloat(usd, 64)
	switch {
	case err != nil:
		return "cost unknown"
	case f == 0:
		return "$0"
	case f < 1:
		return fmt.Sprintf("$%.4f", f)
	}
	return fmt.Sprintf("$%.2f", f)
}

// micro writes millionths of a dollar as decimal dollars.
func micro(n int64) string { return fmt.Sprintf("%d.%06d", n/1_000_000, n%1_000_000) }
