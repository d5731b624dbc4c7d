// Command shell is the /bin/sh of the root filesystem that TestRootfs makes: a
// static program that says what it sees of it.
package main

import (
	"fmt"
	"os"
)

func main() {
	marker, err := os.ReadFile("/marker")
	fmt.Printf("%s%v\n", marker, err)
	_, err = os.Stat("/home/somebody")
	fmt.Println("hidden:", os.IsNotExist(err))
	fmt.Println("read-only:", os.WriteFile("/marker", nil, 0o644) != nil && os.Mkdir("/made", 0o755) != nil)
	fmt.Println("workspace:", os.WriteFile("/workspace/file", []byte("x"), 0o644))
}
