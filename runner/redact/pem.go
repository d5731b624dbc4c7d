package redact

import (
	"bytes"
	"regexp"
	"sync"
)

// pemBegin matches the first line of a private key (RFC 7468, 5.1 and 10;
// OpenSSH and OpenPGP, RFC 9580 6.2, write similar ones), and pemDashes is its
// beginning.
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
	// pemGap matches the text between two lines of a key: white space, its
	// escapes in strings, and prefixes of lines.
	pemGap = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(\n\+?|[ \t\r>|:"',]|\\[nrt\\"]|→)*`)
	})
	pemDashes = []byte("-----BEGIN ")
	pemMark   = []byte("[redacted:private key]")
)

// maxPEMMark bounds the first and the last line of a key, and maxPEMBytes a
// key: one with 16,384 bits has 13 KB.
const (
	maxPEMMark  = 100
	maxPEMBytes = 32 << 10
)

// minPEMLine is the least number of consecutive base64 digits in a line of a
// key. Only the line before the end may have fewer.
const minPEMLine = 16

// redactPEM replaces private keys between their first and last lines. If a key
// has no end, as in the output of head, all its lines are replaced. A first
// line alone, as in a text about keys, is not a key.
func redactPEM(text []byte) []byte {
	s := splicer{text: text}
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
		s.replace(i+from, i+to, pemMark)
		i += to
	}
	return s.result()
}

// pemBody returns the offsets of the lines between the first and the last one
// of the key at the beginning of text. They are equal if there is no key. open
// reports that the key may continue after text.
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
		case n > 0 && n < 7 && isNumber(text[i:i+n]): // a line number, as in read_file and grep -n
			i += n
		default: // the last line of text may be incomplete
			return from, to, !pemEnd().Match(rest) && !bytes.ContainsRune(text[i:], '\n')
		}
	}
	return from, to, true
}

// endsPEM reports whether text begins with the end of a key.
func endsPEM(text []byte) bool {
	text = text[len(pemGap().Find(text)):]
	return pemEnd().Match(text[:min(len(text), maxPEMMark)]) || bytes.HasPrefix(text, []byte("="))
}

func base64Byte(c byte) bool { return isOneOf(c, digits+letters+"+/=") }

func isNumber(text []byte) bool {
	return len(bytes.Trim(text, digits)) == 0
}

// pemCut returns the start of the private key, or possible beginning of one,
// that a cut at the offset at would divide. Otherwise it returns at.
func pemCut(buf []byte, at int) int {
	for i := max(0, at-maxPEMBytes); i < at; i++ {
		if buf[i] != '-' || !bytes.HasPrefix(pemDashes, buf[i:min(len(buf), i+len(pemDashes))]) {
			continue
		}
		if i+maxPEMMark > at { // its first line may end after the cut
			return i
		}
		if _, to, open := pemBody(buf[i:]); open || i+to >= at {
			return i
		}
	}
	return at
}
