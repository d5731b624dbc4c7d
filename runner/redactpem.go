package runner

import (
	"bytes"
	"regexp"
	"sync"
)

// pemBegin is the first line of a private key (RFC 7468, 5.1 and 10; OpenSSH and
// OpenPGP, RFC 9580 6.2, write the like), and pemDashes what is looked for first.
var (
	pemBegin = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^-----BEGIN ([A-Z0-9]{1,20} ){0,3}PRIVATE KEY( BLOCK)?-----`)
	})
	pemEnd = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^-----END ([A-Z0-9]{1,20} ){0,3}PRIVATE KEY( BLOCK)?-----`)
	})
	pemHeader = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(Proc-Type|DEK-Info|Version|Comment|Hash): [^\r\n\\]{0,200}`)
	})
	// pemGap matches the text between two lines of a key: white space, its escapes
	// in strings, and prefixes of lines.
	pemGap = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(\n\+?|[ \t\r>|:"',]|\\[nrt\\"]|→)*`)
	})
	pemDashes = []byte("-----BEGIN ")
)

// maxPEMMark bounds the first and the last line of a key, maxPEMBytes a key: one
// of 16,384 bits has 13 KB.
const (
	maxPEMMark  = 100
	maxPEMBytes = 32 << 10
)

// minPEMLine is how many characters of base64 in a row are a line of a key: what
// has less is the last line, with the end behind it, or no key.
const minPEMLine = 16

// redactPEM replaces private keys between their first and last lines. Of one that has
// no end, as head writes it, the lines that are there are replaced; a first line
// alone, as in a text about keys, is none.
func redactPEM(text []byte) []byte {
	var out []byte
	done := 0
	for i := 0; ; {
		at := bytes.Index(text[i:], pemDashes)
		if at < 0 {
			break
		}
		i += at
		from, to, _ := pemBody(text[i:])
		if to == from {
			i += len(pemDashes)
			continue
		}
		out = append(append(out, text[done:i+from]...), "[redacted:private key]"...)
		done = i + to
		i = done
	}
	if out == nil {
		return text
	}
	return append(out, text[done:]...)
}

// pemBody returns the place of what stands between the first and the last line of
// the key that text begins with, which is empty where it is none, and whether the
// key goes on for all of text that is looked at.
func pemBody(text []byte) (from, to int, open bool) {
	from = len(pemBegin().Find(text[:min(len(text), maxPEMMark)]))
	if from == 0 {
		return from, from, false
	}
	i, to := from, from
	for i < min(len(text), maxPEMBytes) {
		i += len(pemGap().Find(text[i:]))
		rest := text[i:min(len(text), i+maxPEMMark*3)]
		n := 0
		for n < len(text)-i && base64Byte(text[i+n]) {
			n++
		}
		switch header := pemHeader().Find(rest); {
		case header != nil:
			i += len(header)
		case n >= minPEMLine, n > 0 && endsPEM(text[i+n:]):
			i += n
			to = i
		case n > 0 && n < 7 && isNumber(text[i:i+n]): // of a line, as read_file and grep -n write them
			i += n
		default: // the last line of text may not be whole
			return from, to, !pemEnd().Match(rest) && !bytes.ContainsRune(text[i:], '\n')
		}
	}
	return from, to, true
}

// endsPEM says whether the last line is next.
func endsPEM(text []byte) bool {
	text = text[len(pemGap().Find(text)):]
	return pemEnd().Match(text[:min(len(text), maxPEMMark)]) || bytes.HasPrefix(text, []byte("="))
}

func base64Byte(c byte) bool { return isOneOf(c, digits+letters+"+/=") }

func isNumber(text []byte) bool {
	return len(bytes.Trim(text, digits)) == 0
}

// pemCut gives the start of a private key, or of what may become one, that a cut
// at would part; at where there is none.
func pemCut(buf []byte, at int) int {
	for i := max(0, at-maxPEMBytes); i < at; i++ {
		if buf[i] != '-' || !bytes.HasPrefix(pemDashes, buf[i:min(len(buf), i+len(pemDashes))]) {
			continue
		}
		if i+maxPEMMark > at { // its first line may not be whole before the cut
			return i
		}
		if _, to, open := pemBody(buf[i:]); open || i+to >= at {
			return i
		}
	}
	return at
}
