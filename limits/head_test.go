package limits

import (
	"io"
	"strings"
	"testing"
)

func TestHead(t *testing.T) {
	h := Head{Size: 5}
	// io.Copy must use Write, as for any writer.
	if n, err := io.Copy(&h, struct{ io.Reader }{strings.NewReader("0123456789")}); n != 10 || err != nil || h.String() != "01234" {
		t.Errorf("copied %d, %v; kept %q", n, err, h.String())
	}
	if n, err := h.Write([]byte("x")); n != 1 || err != nil || string(h.Bytes()) != "01234" {
		t.Errorf("wrote %d, %v; kept %q", n, err, h.Bytes())
	}
}
