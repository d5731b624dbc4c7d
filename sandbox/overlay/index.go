package overlay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// maxIndexBytes is the size up to which a git index is read: 64 MiB are half a
// million files.
const maxIndexBytes = 64 << 20

// isIndex reports whether a path is that of the index of a repository.
func isIndex(path string) bool { return base(path) == "index" && isGit(base(parent(path))) }

// hashIndex returns a hash of the names, modes, objects and flags in a git
// index. It ignores the metadata of files, which any "git status", and so any
// prompt, rewrites. It returns "" for an unknown format, for which the bytes
// are compared (gitformat-index(5); versions 2 and 3 with SHA-1 names are
// known).
func hashIndex(data []byte) string {
	const header, statBytes, modeAt, hashBytes = 12, 40, 24, 20
	if len(data) < header+hashBytes || !bytes.HasPrefix(data, []byte("DIRC")) {
		return ""
	}
	version, count := binary.BigEndian.Uint32(data[4:]), binary.BigEndian.Uint32(data[8:])
	if version != 2 && version != 3 {
		return ""
	}
	sum := sha256.New()
	rest := data[header : len(data)-hashBytes]
	for range count {
		fixed := statBytes + hashBytes + 2
		if len(rest) < fixed {
			return ""
		}
		flags := binary.BigEndian.Uint16(rest[fixed-2:])
		if flags&0x4000 != 0 { // an extended entry
			fixed += 2
		}
		end := -1
		if len(rest) > fixed {
			end = bytes.IndexByte(rest[fixed:], 0)
		}
		if end < 0 {
			return ""
		}
		sum.Write(rest[modeAt : modeAt+4])
		sum.Write(rest[statBytes : fixed+end+1]) // object, flags, name and its NUL
		size := (fixed + end + 8) &^ 7
		if len(rest) < size {
			return ""
		}
		rest = rest[size:]
	}
	// Extensions with a capital letter are caches. Others change the meaning of
	// the index.
	for len(rest) >= 8 {
		if rest[0] < 'A' || rest[0] > 'Z' {
			return ""
		}
		size := int64(binary.BigEndian.Uint32(rest[4:])) + 8
		if size > int64(len(rest)) {
			return ""
		}
		rest = rest[size:]
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// findRepository returns the .git directory that contains a path, or is that
// path.
func findRepository(path string) (string, bool) {
	at := 0
	for name := range strings.SplitSeq(path, "/") {
		if isGit(name) {
			return path[:at+len(name)], true
		}
		at += len(name) + 1
	}
	return "", false
}
