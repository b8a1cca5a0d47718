# Builds an image with Docker. `make image` writes one without Docker.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY config/policy config/policy
COPY controllers controllers
COPY internal internal
COPY nodeagent nodeagent
COPY webhooks webhooks
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /purelb ./cmd && \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /purelb-speaker ./cmd/speaker

FROM gcr.io/distroless/static:nonroot
LABEL org.opencontainers.image.title="PureLB"
LABEL org.opencontainers.image.source="https://github.com/purelb/purelb-operator"
LABEL org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /purelb /purelb-speaker /
USER 65532:65532
ENTRYPOINT ["/purelb"]
