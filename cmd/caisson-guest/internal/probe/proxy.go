package probe

import (
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// answerTime bounds the wait for an answer of the proxy or to a name lookup, in
// milliseconds: a busy host decides both.
const answerTime = 5000

// tryProxy asks the environment's proxy to connect to host:port. It returns the
// answer's status, such as "403", or the name of an error.
func tryProxy(authority string) string {
	proxy, err := netip.ParseAddrPort(strings.TrimPrefix(os.Getenv("HTTP_PROXY"), "http://"))
	if err != nil || !proxy.Addr().Is4() {
		return "no proxy in the environment"
	}
	request := "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n\r\n"
	answer, errno := exchange(unix.SOCK_STREAM, &unix.SockaddrInet4{Port: int(proxy.Port()), Addr: proxy.Addr().As4()}, []byte(request))
	if errno != 0 {
		return errnoName(errno)
	}
	words := strings.Fields(string(answer))
	if len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1.") {
		return "no answer of HTTP"
	}
	return words[1]
}

// tryName looks up a name at 127.0.0.1. It returns "ok" if the name exists,
// wire.NameUnknown, or the name of an error.
func tryName(name string) string {
	query := []byte{0x4a, 0x17, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0} // recursion desired, one question
	for label := range strings.SplitSeq(name, ".") {
		query = append(append(query, byte(len(label))), label...)
	}
	query = append(query, 0, 0, 1, 0, 1) // A, IN
	answer, errno := exchange(unix.SOCK_DGRAM, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{127, 0, 0, 1}}, query)
	switch {
	case errno != 0:
		return errnoName(errno)
	case len(answer) < 12 || answer[0] != query[0] || answer[1] != query[1] || answer[2]&0x80 == 0:
		return "no answer of DNS"
	}
	switch code := answer[3] & 0xf; code {
	case 0:
		return "ok"
	case 3:
		return wire.NameUnknown
	default:
		return "response code " + strconv.Itoa(int(code))
	}
}

// exchange sends bytes to a socket and returns the first read.
func exchange(kind int, to unix.Sockaddr, request []byte) ([]byte, unix.Errno) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errnoOf(err)
	}
	defer unix.Close(fd) // everything was read
	limit := unix.Timeval{Sec: answerTime / 1000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil { // applies to connect too
		return nil, errnoOf(err)
	}
	if err := unix.Connect(fd, to); err != nil {
		return nil, errnoOf(err)
	}
	if _, err := unix.Write(fd, request); err != nil {
		return nil, errnoOf(err)
	}
	if errno := awaitEvent(fd, unix.POLLIN, answerTime); errno != 0 {
		return nil, errno
	}
	answer := make([]byte, 512)
	n, err := unix.Read(fd, answer)
	if err != nil {
		return nil, errnoOf(err)
	}
	return answer[:n], 0
}
