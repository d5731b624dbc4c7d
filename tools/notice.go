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
	// maxNotices bounds the notices about one input.
	maxNotices = 8
	// maxNoticeBytes bounds a word that a notice names.
	maxNoticeBytes = 200
	// longBlank is the number of blanks in a row that can push what follows out
	// of sight, and longEmpty that of newlines.
	longBlank = 60
	longEmpty = 20
)

// InputNotices returns facts about an input that a person who reads it might
// overlook, each a phrase that is safe for display: long runs of blanks, and
// letters of one script that pass for those of another.
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

// visitStrings calls visit with every string of a decoded JSON value, keys
// included, in a fixed order.
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

// blankNotices counts the longest run of blanks, of any script, and of newlines.
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

// Words, and names that could be hosts: labels between dots, which for host
// names (UTS 46) can be ideographic or of full width too, or a single label after :// or @.
var (
	letterWord = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`[\p{L}\p{M}\p{N}]+`)
	})
	hostLike = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(://|@)?[\p{L}\p{M}\p{N}_-]+([.。．｡][\p{L}\p{M}\p{N}_-]+)*`)
	})
)

// letterNotices names words that mix letters of scripts that look alike, and
// host names with letters that pass for others.
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

// alikeScripts returns the scripts of a word's letters among those whose letters
// look alike. The Greek mu of units counts for none.
func alikeScripts(word string) []string {
	var found []string
	for _, script := range []string{"Latin", "Cyrillic", "Greek", "Armenian", "Cherokee", "Coptic", "Lisu"} {
		if strings.ContainsFunc(word, func(r rune) bool { return r != 'μ' && unicode.Is(unicode.Scripts[script], r) }) {
			found = append(found, script)
		}
	}
	return found
}

// latinLookAlikes are letters, most of other scripts, that most fonts draw as
// a Latin one of ASCII.
const latinLookAlikes = "аеорсухіјѕһԁԛԝӏвкмнтгѵԍոսօհցαορνικυγσχıɡɑ"

// passesForLatin reports whether each letter of a label that is not ASCII looks
// like a Latin one: an imitation of a Latin name from one other script, from
// letters of full width, or from mathematical ones.
func passesForLatin(label string) bool {
	return !strings.ContainsFunc(strings.ToLower(label), func(r rune) bool {
		return notASCII(r) && !strings.ContainsRune(latinLookAlikes, r) && (r < 0xff01 || r > 0xff5e) && (r < 0x1d400 || r > 0x1d7ff)
	})
}

func notASCII(r rune) bool { return r > unicode.MaxASCII }

// spellOut writes every character that is not ASCII as an escape.
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
