package relay

import (
	"encoding/binary"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Numbers of RFC 1035 and RFC 9460.
const (
	messageHeader = 12
	maxLabel      = 63
	maxEncoded    = 255 // of a name, with lengths and the final zero

	typeA     = 1
	typeAAAA  = 28
	typeHTTPS = 65
	classIN   = 1

	codeFormat   = 1
	codeNotFound = 3
	codeNotImpl  = 4

	flagResponse  = 1 << 15
	flagRecursion = 1 << 8 // desired
	flagAvailable = 1 << 7 // recursion
	maskOpcode    = 0xf << 11
)

// ttl is how long a program may keep an address, in seconds. An address belongs
// to its name for the whole session.
const ttl = 60

type query struct {
	head     []byte // the header
	question []byte // with the name as written: resolvers compare the case
	name     string // for the host; empty if it can't be asked
	kind     uint16
	code     uint16 // of a query that is refused as it is
}

// parseQuery parses a message. It returns false if the message gets no answer.
// It ignores what follows the question, such as EDNS options.
func parseQuery(b []byte) (query, bool) {
	if len(b) < messageHeader {
		return query{}, false
	}
	flags := binary.BigEndian.Uint16(b[2:])
	if flags&flagResponse != 0 {
		return query{}, false
	}
	q := query{head: b[:messageHeader]}
	if flags&maskOpcode != 0 {
		q.code = codeNotImpl
		return q, true
	}
	name, size, ok := parseName(b[messageHeader:])
	end := messageHeader + size + 4
	if binary.BigEndian.Uint16(b[4:]) != 1 || !ok || len(b) < end {
		q.code = codeFormat
		return q, true
	}
	q.question = b[messageHeader:end]
	q.kind = binary.BigEndian.Uint16(b[end-4:])
	if binary.BigEndian.Uint16(b[end-2:]) != classIN {
		return q, true
	}
	if q.kind == typeA || q.kind == typeAAAA || q.kind == typeHTTPS {
		q.name = name
		if !wire.IsName(name) {
			q.code = codeNotFound
		}
	}
	return q, true
}

// parseName parses a name at the beginning of b, and returns it in lower case
// and its size. A label with a dot makes the name invalid. Pointers are
// refused: nothing precedes the question.
func parseName(b []byte) (name string, size int, ok bool) {
	var text []byte
	for {
		if size >= len(b) || size >= maxEncoded {
			return "", 0, false
		}
		n := int(b[size])
		size++
		if n == 0 {
			return string(text), size, true
		}
		if n > maxLabel || size+n > len(b) {
			return "", 0, false
		}
		if len(text) > 0 {
			text = append(text, '.')
		}
		for _, c := range b[size : size+n] {
			switch {
			case 'A' <= c && c <= 'Z':
				c += 'a' - 'A'
			case c == '.':
				c = 0 // no name has it
			}
			text = append(text, c)
		}
		size += n
	}
}

// respond returns the answer: an address, or none, for a name that exists or
// not. It is never a refusal, after which musl waits for five seconds.
func (q query) respond(exists bool, addr [4]byte) []byte {
	code := q.code
	if code == 0 && q.name != "" && !exists {
		code = codeNotFound
	}
	b := make([]byte, messageHeader, messageHeader+len(q.question)+16)
	copy(b, q.head[:2])
	flags := binary.BigEndian.Uint16(q.head[2:])&(flagRecursion|maskOpcode) | flagResponse | flagAvailable | code
	binary.BigEndian.PutUint16(b[2:], flags)
	if q.question == nil {
		return b
	}
	binary.BigEndian.PutUint16(b[4:], 1)
	b = append(b, q.question...)
	if code != 0 || q.kind != typeA || !exists {
		return b
	}
	binary.BigEndian.PutUint16(b[6:], 1)
	const pointer = 0xc000 | messageHeader
	b = binary.BigEndian.AppendUint16(b, pointer)
	b = binary.BigEndian.AppendUint16(b, typeA)
	b = binary.BigEndian.AppendUint16(b, classIN)
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = binary.BigEndian.AppendUint16(b, uint16(len(addr)))
	return append(b, addr[:]...)
}
