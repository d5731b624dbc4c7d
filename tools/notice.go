package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

const (
	maxNotices = 8
	// maxNoticeBytes bounds a word quoted in a notice.
	maxNoticeBytes = 200
	// longBlank blanks, or longEmpty newlines, can push what follows out of sight.
	longBlank = 60
	longEmpty = 20
)

// InputNotices returns phrases, safe for display, about what a reader of the input
// might overlook: long runs of blanks, and letters of one script that pass for
// another's.
func InputNotices(input json.RawMessage) []string {
	var decoded any
	if err := json.Unmarshal(input, &decoded); err != nil {
		return nil
	}
	var notices []string
	visitStrings(decoded, func(s string) {
		for _, notice := range append(blankNotices(s), letterNotices(s)...) {
			if len(notices) < maxNotices && !slices.Contains(notices, notice) {
				notices = append(notices, notice)
			}
		}
	})
	return notices
}

// visitStrings visits every string of a decoded JSON value, including keys, in a
// fixed order.
func visitStrings(v any, visit func(string)) {
	switch v := v.(type) {
	case string:
		visit(v)
	case []any:
		for _, e := range v {
			visitStrings(e, visit)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			visit(key)
			visitStrings(v[key], visit)
		}
	}
}

func blankNotices(s string) []string {
	var notices []string
	count := func(in func(rune) bool, least int, format string) {
		var longest, run int
		for _, r := range s {
			if run++; !in(r) {
				run = 0
			}
			longest = max(longest, run)
		}
		if longest >= least {
			notices = append(notices, fmt.Sprintf(format, longest))
		}
	}
	count(func(r rune) bool { return r == '\t' || unicode.Is(unicode.Zs, r) }, longBlank, "%d blanks in a row")
	count(func(r rune) bool { return r == '\n' || r == '\r' }, longEmpty, "%d line ends in a row")
	return notices
}

// hostLike matches labels between dots, or a single label after :// or @. The dots
// of host names can be ideographic or full-width (UTS 46).
var (
	letterWord = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`[\p{L}\p{M}\p{N}]+`)
	})
	hostLike = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(://|@)?[\p{L}\p{M}\p{N}_-]+([.。．｡][\p{L}\p{M}\p{N}_-]+)*`)
	})
)

// letterNotices reports words that mix scripts with similar letters, and host names
// with letters that pass for others.
func letterNotices(s string) []string {
	if !strings.ContainsFunc(s, notASCII) {
		return nil
	}
	var notices []string
	for _, word := range letterWord().FindAllString(s, -1) {
		if scripts := alikeScripts(word); len(scripts) > 1 {
			notices = append(notices, fmt.Sprintf("%s mixes letters that look alike: %s", spellOut(word), strings.Join(scripts, " and ")))
		}
	}
	for _, name := range hostLike().FindAllString(s, -1) {
		host := strings.TrimLeft(name, ":/@")
		labels := strings.FieldsFunc(host, func(r rune) bool { return strings.ContainsRune(".。．｡", r) })
		address := host != name // after :// or @
		if !address && len(labels) < 2 {
			continue
		}
		if strings.ContainsAny(host, "。．｡") || slices.ContainsFunc(labels, func(l string) bool { return strings.ContainsFunc(l, notASCII) && (address || passesForLatin(l)) }) {
			notices = append(notices, fmt.Sprintf("%s is no plain host name", spellOut(host)))
		}
	}
	return notices
}

// alikeScripts returns which scripts with similar letters occur in word. The Greek
// mu of units doesn't count.
func alikeScripts(word string) []string {
	var found []string
	for _, script := range []string{"Latin", "Cyrillic", "Greek", "Armenian", "Cherokee", "Coptic", "Lisu"} {
		if strings.ContainsFunc(word, func(r rune) bool { return r != 'μ' && unicode.Is(unicode.Scripts[script], r) }) {
			found = append(found, script)
		}
	}
	return found
}

// latinLookAlikes are letters that most fonts draw like an ASCII one.
const latinLookAlikes = "аеорсухіјѕһԁԛԝӏвкмнтгѵԍոսօհցαορνικυγσχıɡɑ"

// passesForLatin reports whether each non-ASCII letter of a label looks like an
// ASCII one: from another script, full-width or mathematical.
func passesForLatin(label string) bool {
	return !strings.ContainsFunc(strings.ToLower(label), func(r rune) bool {
		return notASCII(r) && !strings.ContainsRune(latinLookAlikes, r) && (r < 0xff01 || r > 0xff5e) && (r < 0x1d400 || r > 0x1d7ff)
	})
}

func notASCII(r rune) bool { return r > unicode.MaxASCII }

// spellOut escapes every non-ASCII character.
func spellOut(s string) string {
	var b strings.Builder
	for _, r := range s {
		if notASCII(r) {
			writeEscape(&b, r, string(r))
			continue
		}
		b.WriteRune(r)
	}
	return utf8text.Clip(b.String(), maxNoticeBytes)
}
