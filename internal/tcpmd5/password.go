// Package tcpmd5 reads passwords of BGP sessions, which TCP MD5 (RFC 2385) signs segments with.
package tcpmd5

import (
	"bytes"
	"fmt"
)

// maxPassword is the longest password that Linux takes, in bytes (TCP_MD5SIG_MAXKEYLEN of linux/tcp.h).
const maxPassword = 80

// ParsePassword returns the password that a key of a Secret, or the file of one, has, without the ends of lines after
// it. problem says why no session can have it; it is empty if one can.
func ParsePassword(content []byte) (password, problem string) {
	trimmed := bytes.TrimRight(content, "\r\n")
	switch n := len(trimmed); {
	case n == 0:
		problem = "is empty"
	case n > maxPassword:
		problem = fmt.Sprintf("has %d bytes: TCP MD5 takes at most %d", n, maxPassword)
	}
	return string(trimmed), problem
}
